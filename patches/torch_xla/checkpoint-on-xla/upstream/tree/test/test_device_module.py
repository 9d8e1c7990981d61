import sys
import unittest

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch.utils.checkpoint import checkpoint


class TestDeviceModule(unittest.TestCase):

  def setUp(self):
    super().setUp()
    self.device = xm.xla_device()

  def _gradients(self, run):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5))
    layers = layers.to(self.device)
    x = torch.ones(4, 8, device=self.device, requires_grad=True)
    torch.xla.manual_seed(1)
    run(layers, x).square().sum().backward()
    return [x.grad.cpu(), *(p.grad.cpu() for p in layers.parameters())]

  def test_checkpoint(self):
    expected = self._gradients(lambda layers, x: layers(x))
    for use_reentrant in (False, True):
      with self.subTest(use_reentrant=use_reentrant):
        found = self._gradients(lambda layers, x: checkpoint(
            layers, x, use_reentrant=use_reentrant))
        for one, other in zip(found, expected, strict=True):
          self.assertTrue(torch.equal(one, other))

  def test_fork_rng(self):
    index = self.device.index or 0
    torch.xla.manual_seed(3)
    with torch.random.fork_rng(devices=[index], device_type='xla'):
      inside = torch.rand(4, device=self.device).cpu()
    after = torch.rand(4, device=self.device).cpu()
    self.assertTrue(torch.equal(inside, after))

  def test_states_go_there_and_back(self):
    torch.xla.manual_seed(5)
    state = torch.xla.get_rng_state()
    self.assertEqual((state.dtype, tuple(state.shape), state.device.type),
                     (torch.uint8, (8,), 'cpu'))
    first = torch.rand(4, device=self.device).cpu()
    torch.xla.set_rng_state(state)
    self.assertTrue(
        torch.equal(torch.rand(4, device=self.device).cpu(), first))

  def test_devices(self):
    self.assertTrue(torch.xla.is_available())
    self.assertLess(torch.xla.current_device(), torch.xla.device_count())
    with torch.xla.device(torch.xla.current_device()):
      self.assertEqual(torch.ones(1, device='xla').device.type, 'xla')

  def test_what_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'expected an XLA device'):
      torch.xla.set_device('cpu')
    with self.assertRaisesRegex(ValueError, 'expected the index of one of'):
      torch.xla.set_device(torch.xla.device_count())
    with self.assertRaisesRegex(TypeError, 'expected a state'):
      torch.xla.set_rng_state(torch.ones(8))


if __name__ == '__main__':
  test = unittest.main(exit=False)
  sys.exit(0 if test.result.wasSuccessful() else 1)
