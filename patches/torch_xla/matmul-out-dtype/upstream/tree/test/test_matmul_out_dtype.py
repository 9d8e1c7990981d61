import re
import sys
import unittest

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def integers(*shape, dtype, seed):
  # Their products' sums are exact in float32 and are not in bfloat16.
  generator = torch.Generator().manual_seed(seed)
  return torch.randint(-8, 9, shape, generator=generator).to(dtype)


class TestMatmulOutDtype(unittest.TestCase):

  def setUp(self):
    super().setUp()
    self.device = xm.xla_device()

  def _cases(self, dtype):
    """Yields for each operator its arguments and its exact result."""
    a, b = (integers(*shape, dtype=dtype, seed=i)
            for i, shape in enumerate([(3, 8, 512), (3, 512, 16)]))
    bias = integers(16, dtype=dtype, seed=2)
    wide_a, wide_b, wide_bias = a.double(), b.double(), bias.double()
    yield torch.mm, (a[0], b[0]), {}, wide_a[0] @ wide_b[0]
    yield torch.bmm, (a, b), {}, wide_a @ wide_b
    scale = {'beta': 2, 'alpha': 3}
    yield (torch.addmm, (bias, a[0], b[0]), scale,
           2 * wide_bias + 3 * (wide_a[0] @ wide_b[0]))
    yield (torch.baddbmm, (bias, a, b), scale,
           2 * wide_bias + 3 * (wide_a @ wide_b))

  def test_product_is_exact_and_one_dot(self):
    for dtype, name in ((torch.bfloat16, 'bf16'), (torch.float16, 'f16')):
      for op, arguments, scale, expected in self._cases(dtype):
        with self.subTest(op=op.__name__, dtype=dtype):
          on_xla = [t.to(self.device) for t in arguments]
          out = op(*on_xla, out_dtype=torch.float32, **scale)
          self.assertEqual(out.dtype, torch.float32)
          hlo = torch_xla._XLAC._get_xla_tensors_hlo([out])
          dots = re.findall(r'= (\w+)\[[\d,]*\]\S* dot\((\w+)\[', hlo)
          self.assertEqual(dots, [('f32', name)], hlo)
          self.assertTrue(torch.equal(out.cpu().double(), expected))

  def test_same_dtype(self):
    a, b = (integers(8, 8, dtype=torch.float32, seed=i) for i in range(2))
    out = torch.mm(
        a.to(self.device), b.to(self.device), out_dtype=torch.float32)
    self.assertTrue(torch.equal(out.cpu(), a @ b))

  def test_beta_of_zero_does_not_read_self(self):
    a = torch.ones(4, 4, dtype=torch.bfloat16, device=self.device)
    bias = torch.full((4,), torch.nan, dtype=torch.bfloat16).to(self.device)
    out = torch.addmm(bias, a, a, out_dtype=torch.float32, beta=0)
    self.assertTrue(torch.equal(out.cpu(), torch.full((4, 4), 4.)))

  def test_what_is_refused(self):
    a = torch.ones(4, 4, dtype=torch.bfloat16, device=self.device)
    with self.assertRaisesRegex(RuntimeError, 'out_dtype must be the same'):
      torch.mm(a, a, out_dtype=torch.float64)
    with self.assertRaisesRegex(RuntimeError, 'must be the same'):
      torch.mm(a, a.float(), out_dtype=torch.float32)
    with self.assertRaisesRegex(RuntimeError, 'mat2 must be a matrix'):
      torch.mm(a, a[0], out_dtype=torch.float32)


if __name__ == '__main__':
  test = unittest.main(exit=False)
  sys.exit(0 if test.result.wasSuccessful() else 1)
