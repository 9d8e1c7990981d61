import re
import sys
import unittest

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm

BATCH = (64, 512)
IMAGES = (2, 8, 32, 32)

# The lowerings that compute in float32, with the shape of their operand.
FUNCTIONS = {
    'mean': (BATCH, lambda x: x.abs().mean(1)),
    'var': (BATCH, lambda x: x.var(1)),
    'std': (BATCH, lambda x: x.std(1)),
    'softmax': (BATCH, lambda x: x.softmax(1)),
    'logsigmoid': (BATCH, lambda x: F.logsigmoid(x.abs())),
    'mse_loss': (BATCH, lambda x: F.mse_loss(x, x.flip(0))),
    'binary_cross_entropy': (BATCH, lambda x: F.binary_cross_entropy(
        x.sigmoid(),
        x.flip(0).sigmoid())),
    'avg_pool2d': (IMAGES, lambda x: F.avg_pool2d(x, 5)),
    'adaptive_avg_pool2d': (IMAGES, lambda x: F.adaptive_avg_pool2d(x, 4)),
}


def softmax_gradient(x):
  x = x.detach().requires_grad_()
  weight = torch.linspace(0.25, 1.25, x.shape[-1], dtype=x.dtype)
  (x.softmax(1) * weight.to(x.device)).sum().backward()
  return x.grad


class TestWideReductions(unittest.TestCase):

  def setUp(self):
    super().setUp()
    self.device = xm.xla_device()
    generator = torch.Generator().manual_seed(0)
    self.operands = {
        shape: torch.randn(shape, generator=generator)
        for shape in (BATCH, IMAGES)
    }

  def _reduced_in(self, result):
    """Returns the types in which the HLO of a tensor reduces."""
    hlo = torch_xla._XLAC._get_xla_tensors_hlo([result])
    reductions = r'= (\w+)\[[\d,]*\]\S* (?:reduce|reduce-window)\('
    return set(re.findall(reductions, hlo))

  def _assert_as_exact_as_the_cpu(self, function, x):
    exact = function(x.double())

    def error(result):
      self.assertEqual(result.dtype, x.dtype)
      difference = (result.detach().cpu().double() - exact).abs().sum()
      return (difference / exact.abs().sum()).item()

    # XLA may add in another order, which changes the last bit of some results.
    limit = 1.5 * error(function(x)) + torch.finfo(x.dtype).eps / 40
    self.assertLessEqual(error(function(x.to(self.device))), limit)

  def test_as_exact_as_the_cpu(self):
    for name, (shape, function) in FUNCTIONS.items():
      with self.subTest(function=name):
        x = 2 * self.operands[shape]
        self._assert_as_exact_as_the_cpu(function, x.bfloat16())

  def test_softmax_gradient(self):
    x = 2 * self.operands[BATCH]
    self._assert_as_exact_as_the_cpu(softmax_gradient, x.bfloat16())

  def test_reduced_in_float32_and_rounded(self):
    for dtype in (torch.bfloat16, torch.float16):
      for name, (shape, function) in FUNCTIONS.items():
        if name == 'logsigmoid':  # it reduces nothing
          continue
        with self.subTest(function=name, dtype=dtype):
          result = function(self.operands[shape].to(dtype).to(self.device))
          self.assertEqual(result.dtype, dtype)
          self.assertEqual(self._reduced_in(result), {'f32'})

  def test_mean_with_dtype_converts_first(self):
    x = self.operands[BATCH].bfloat16()
    for dtype in (torch.float32, torch.bfloat16):
      result = x.to(self.device).mean(dtype=dtype)
      self.assertEqual(result.dtype, dtype)
      self.assertEqual(self._reduced_in(result), {'f32'})
    mask = x > 0
    self.assertEqual(
        mask.to(self.device).mean(dtype=torch.float32).item(),
        mask.float().mean().item())

  def test_other_dtypes_are_not_widened(self):
    x = self.operands[BATCH].double().to(self.device)
    for result in (x.mean(), x.softmax(1), x.std(), F.mse_loss(x, x + 1)):
      self.assertEqual(self._reduced_in(result), {'f64'})

  def test_operands_of_two_dtypes(self):
    x = self.operands[BATCH].to(self.device)
    self.assertEqual(F.mse_loss(x.bfloat16(), x).dtype, torch.float32)


if __name__ == '__main__':
  test = unittest.main(exit=False)
  sys.exit(0 if test.result.wasSuccessful() else 1)
