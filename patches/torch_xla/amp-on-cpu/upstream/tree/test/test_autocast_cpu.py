import sys
import unittest
import warnings

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.amp import autocast


class TestAutocastOnCpu(unittest.TestCase):

  def setUp(self):
    super().setUp()
    self.device = xm.xla_device()
    if xm.xla_device_hw(self.device) != 'CPU':
      self.skipTest('these are about the CPU')

  def _operands(self):
    return [torch.ones(4, 4, device=self.device) for _ in range(2)]

  def _graph(self, *tensors):
    return torch_xla._XLAC._get_xla_tensors_text(list(tensors))

  def test_products_are_bfloat16(self):
    a, b = self._operands()
    with autocast(self.device):
      self.assertEqual(torch.mm(a, b).dtype, torch.bfloat16)
      self.assertEqual(torch.nn.functional.linear(a, b).dtype, torch.bfloat16)
    self.assertEqual(torch.mm(a, b).dtype, torch.float32)

  def test_what_needs_float32_gets_it(self):
    a, _ = self._operands()
    with autocast(self.device):
      loss = torch.nn.functional.mse_loss(a.bfloat16(), a.bfloat16())
    self.assertEqual(loss.dtype, torch.float32)

  def test_the_graph_is_that_of_torch_autocast(self):
    a, b = self._operands()
    xm.mark_step()
    with autocast(self.device):
      ours = self._graph(torch.mm(a, b))
    with torch.autocast('xla', dtype=torch.bfloat16):
      expected = self._graph(torch.mm(a, b))
    self.assertIn('xla::cast', ours)
    self.assertEqual(ours, expected)

  def test_gradients_have_the_dtype_of_the_parameters(self):
    linear = torch.nn.Linear(4, 4).to(self.device)
    with autocast(self.device):
      loss = linear(self._operands()[0]).sum()
    loss.backward()
    self.assertEqual(linear.weight.grad.dtype, torch.float32)

  def test_disabled(self):
    a, b = self._operands()
    with autocast(self.device, enabled=False):
      self.assertEqual(torch.mm(a, b).dtype, torch.float32)

  def test_another_dtype_warns_and_does_nothing(self):
    a, b = self._operands()
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter('always')
      with autocast(self.device, dtype=torch.float16):
        self.assertEqual(torch.mm(a, b).dtype, torch.float32)
    self.assertTrue(any('bfloat16' in str(one.message) for one in caught))


if __name__ == '__main__':
  test = unittest.main(exit=False)
  sys.exit(0 if test.result.wasSuccessful() else 1)
