"""Linear algebra that stays on the device: patches/torch_xla/on-device."""

import importlib
import re

import pytest
import torch
import torch_xla
from ir_text import hlo, ir
from lowered import on_the_cpu, on_the_device, with_gradient
from marks import fails_on_stock
from other_process import completed
from tensors import DEVICE


def matrices(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def definite(x):
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def well_conditioned(x):
    return x + 4 * torch.eye(*x.shape[-2:], dtype=x.dtype, device=x.device)


A = matrices(2, 5, 5)
LU, PIVOTS = torch.linalg.lu_factor(A)
SYMMETRIC = A + A.mT
#: Blocks of one and of two rows, and exchanges; by numbers that leave no doubt which row is the largest.
OF_BLOCKS = [torch.tensor([[0.0, 3, 1, 4], [3, 0, 2, 9], [1, 2, 5, 1], [4, 9, 1, 0]]), torch.diag(torch.arange(4.0, 8))]
#: Of rank 1 and 3. The products are exact: the rounding of others would be the smaller singular values.
OF_RANKS = torch.stack([torch.outer(torch.arange(1.0, 5), torch.arange(2.0, 7)), A[0, :4] - A[0, 3]]).double()

#: Functions of matrices [2, 5, 5]; their gradients are compared as well.
PROGRAMS = {
    "cholesky_ex": lambda x: torch.linalg.cholesky_ex(definite(x)).L,
    "cholesky_ex, upper": lambda x: torch.linalg.cholesky_ex(definite(x), upper=True).L,
    "cholesky_solve": lambda x: torch.cholesky_solve(x[..., :2], well_conditioned(x).tril()),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(well_conditioned(x), x, upper=True),
    "solve_triangular, right": lambda x: torch.linalg.solve_triangular(
        well_conditioned(x[0]), x, upper=False, left=False, unitriangular=True
    ),
    "lu": lambda x: torch.cat(torch.linalg.lu(x), -1),
    "lu, tall": lambda x: torch.cat(torch.linalg.lu(x[..., :3])[1:], -2),
    "lu, wide": lambda x: torch.cat(torch.linalg.lu(x[..., :3, :]), -1),
    "lu_factor_ex": lambda x: torch.linalg.lu_factor_ex(x).LU,
    "lu_unpack": lambda x: torch.cat(torch.lu_unpack(x, PIVOTS.to(x.device)), -1),
    "lu_solve": lambda x: torch.linalg.lu_solve(well_conditioned(x), PIVOTS.to(x.device), x),
    "lu_solve, adjoint": lambda x: torch.linalg.lu_solve(well_conditioned(x), PIVOTS.to(x.device), x, adjoint=True),
    "lu_solve, right": lambda x: torch.linalg.lu_solve(well_conditioned(x), PIVOTS.to(x.device), x, left=False),
    "det": torch.linalg.det,
    "det, transposed": lambda x: torch.linalg.det(x.mT) * x.sum(),
    "slogdet": lambda x: torch.linalg.slogdet(x).logabsdet,
    "slogdet, transposed": lambda x: torch.linalg.slogdet(x.mT).logabsdet * x.sum(),
    "lstsq": lambda x: torch.linalg.lstsq(x[..., :3], x, driver="gels").solution,
    "lstsq, wide": lambda x: torch.linalg.lstsq(x[..., :3, :], x[..., :3, :2], driver="gels").solution,
    "lstsq of any rank": lambda x: torch.linalg.lstsq(x[..., :3], x).solution,
    "lstsq of any rank, wide": lambda x: torch.linalg.lstsq(x[..., :3, :], x[..., :3, :2], driver="gelsy").solution,
    "solve_ex": lambda x: torch.linalg.solve_ex(x, x.flip(-1)).result,
    "solve_ex, transposed": lambda x: torch.linalg.solve_ex(x.mT, x.flip(-1)).result,
    "solve_ex, right": lambda x: torch.linalg.solve_ex(x, x[0].flip(-1), left=False).result,
    "solve_ex, vectors": lambda x: torch.linalg.solve_ex(x, x[..., 0]).result,
    "qr": lambda x: torch.cat(torch.linalg.qr(x), -1),
    "qr, complete": lambda x: torch.linalg.qr(x, mode="complete").R,
    "householder_product": lambda x: torch.linalg.householder_product(x[..., :3], x[..., 0, :3].abs()),
    "matrix_exp": torch.matrix_exp,
    "matrix_exp, scaled": lambda x: torch.matrix_exp(x * torch.tensor([0.1, 2.0]).to(x.device)[:, None, None]),
}

#: Functions of which the results are compared. Their tensors are moved by ``at``.
RESULTS = {
    "residuals of lstsq": lambda at: torch.linalg.lstsq(at(A[..., :3]), at(A[..., 3:]), driver="gels"),
    "lstsq of vectors": lambda at: torch.linalg.lstsq(at(A.double()[..., :3]), at(A.double()[..., 3]), driver="gels"),
    "lstsq, ranks": lambda at: torch.linalg.lstsq(at(OF_RANKS), at(A[:, :4].double())),
    "lstsq of zero": lambda at: torch.linalg.lstsq(at(torch.zeros(3, 2)), at(torch.ones(3, 1))),
    "cholesky_ex of zero": lambda at: torch.linalg.cholesky_ex(at(torch.zeros(1, 1))),
    "lu_factor_ex": lambda at: torch.linalg.lu_factor_ex(at(A)),
    "lu_factor_ex, singular": lambda at: torch.linalg.lu_factor_ex(at(torch.zeros(3, 3))),
    "equal candidates for a pivot": lambda at: torch.linalg.lu_factor_ex(at(torch.tensor([[1.0, 2], [-1, 3], [1, 4]]))),
    "order of a minor": lambda at: (
        torch.linalg.cholesky_ex(at(torch.diag_embed(torch.tensor([[1.0, 2, 3], [1, -2, 3], [1, 2, 0]])))).info
    ),
    "det of singular matrices": lambda at: torch.linalg.det(at(torch.ones(2, 3, 3))),
    "info of inv_ex": lambda at: torch.linalg.inv_ex(at(torch.diag(torch.tensor([1.0, 0, 2])))).info,
    "info of solve_ex": lambda at: torch.linalg.solve_ex(at(torch.zeros(2, 2)), at(torch.ones(2))).info,
    "ldl_factor_ex": lambda at: torch.linalg.ldl_factor_ex(at(SYMMETRIC)),
    "ldl_factor_ex, of blocks": lambda at: torch.linalg.ldl_factor_ex(at(torch.stack(OF_BLOCKS))),
    "ldl_factor_ex, singular": lambda at: torch.linalg.ldl_factor_ex(at(torch.diag(torch.tensor([1.0, 0, 2])))),
    "ldl_factor_ex, of the lower triangle": lambda at: torch.linalg.ldl_factor_ex(at(A.double())),
    "ldl_solve": lambda at: torch.linalg.ldl_solve(*map(at, torch.linalg.ldl_factor(SYMMETRIC)), at(A[..., :2])),
    "ldl_solve, broadcast": lambda at: torch.linalg.ldl_solve(
        *map(at, torch.linalg.ldl_factor(torch.stack(OF_BLOCKS).double())), at(A.double()[0, :4])
    ),
    "geqrf": lambda at: torch.geqrf(at(A[..., :3])),
    "qr, complete": lambda at: torch.linalg.qr(at(A[..., :2]), mode="complete"),
    "qr, wide": lambda at: torch.linalg.qr(at(A[:, :3])),
    "qr, r": lambda at: torch.linalg.qr(at(A), mode="r").R,
    "ormqr": lambda at: torch.ormqr(*map(at, torch.geqrf(A[..., :3])), at(A)),
    "ormqr, right": lambda at: torch.ormqr(*map(at, torch.geqrf(A[..., :3])), at(A), left=False, transpose=True),
    "float64": lambda at: torch.linalg.lu(at(A.double())),
    "matrix_exp of zero": lambda at: torch.matrix_exp(at(torch.zeros(2, 2))),
    "empty": lambda at: (
        *torch.linalg.lu_factor_ex(at(A[:0])),
        *torch.linalg.qr(at(A[..., :0]), mode="complete"),
        torch.linalg.det(at(A[:, :0, :0])),
        torch.linalg.cholesky_ex(at(A[:0])).L,
        *torch.linalg.ldl_factor_ex(at(A[:, :0, :0])),
        torch.matrix_exp(at(A[:0])),
    ),
}

#: A block has 64 columns.
LARGE = {
    "lu": lambda x: torch.cat(torch.linalg.lu(x), -1),
    "lu, tall": lambda x: torch.cat(torch.linalg.lu(x[:, :70])[1:], -2),
    "lu, wide": lambda x: torch.cat(torch.linalg.lu(x[:70]), -1),
    "inv_ex": lambda x: torch.linalg.inv_ex(x).inverse,
    "slogdet": lambda x: torch.linalg.slogdet(x).logabsdet,
    "cholesky_ex": lambda x: torch.linalg.cholesky_ex(definite(x / 10)).L,
    "qr": lambda x: torch.cat(torch.linalg.qr(x), -1),
    "lstsq": lambda x: torch.linalg.lstsq(x[:, :70], x[:, 70:]).solution,
    "ldl_factor": lambda x: torch.linalg.ldl_factor_ex(x + x.mT).LD,
    "ldl_solve": lambda x: torch.linalg.ldl_solve(*torch.linalg.ldl_factor_ex(x + x.mT)[:2], x),
}

#: What raises, and what it says of a matrix that has no answer.
CHECKED = {
    "inv": (torch.linalg.inv, torch.ones(2, 2), "singular"),
    "solve": (lambda x: torch.linalg.solve(x, x), torch.zeros(2, 2), "singular"),
    "cholesky": (torch.linalg.cholesky, -torch.eye(2), "leading minor of order 1 is not positive-definite"),
    "cholesky_ex": (lambda x: torch.linalg.cholesky_ex(x, check_errors=True), -torch.eye(2), "positive-definite"),
    "cholesky_inverse": (torch.cholesky_inverse, torch.tensor([[1.0, 0], [1, 0]]), "diagonal element 2 is zero"),
    "ldl_factor": (torch.linalg.ldl_factor, torch.zeros(2, 2), "ldl_factor: "),
    "lu_factor": (torch.linalg.lu_factor, torch.zeros(2, 2), "is zero"),
    "matrix_power": (lambda x: torch.linalg.matrix_power(x, -2), torch.zeros(2, 2), "singular"),
}


@fails_on_stock
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients_are_those_of_the_cpu(name):
    expected = with_gradient(PROGRAMS[name], A.double())
    found = on_the_device(lambda: with_gradient(PROGRAMS[name], A.to(DEVICE)))
    torch.testing.assert_close(on_the_cpu(found), [t.float() for t in expected], rtol=1e-4, atol=1e-4)


@fails_on_stock
@pytest.mark.parametrize("name", RESULTS)
def test_results_are_those_of_the_cpu(name):
    found = on_the_device(lambda: RESULTS[name](lambda t: t.to(DEVICE)))
    torch.testing.assert_close(on_the_cpu(found), on_the_cpu(RESULTS[name](lambda t: t)), equal_nan=True)


@fails_on_stock
def test_rank_by_rcond():
    """torch's kernel for the CPU begins with columns that memory which it does not set tells."""
    a = torch.diag(torch.tensor([4.0, 1, 0])).to(DEVICE)
    found = on_the_device(lambda: torch.linalg.lstsq(a, torch.ones(3).to(DEVICE), rcond=0.5))
    assert (found.solution.tolist(), found.rank.item()) == ([0.25, 0, 0], 1)


@pytest.mark.passes_on_stock
def test_cholesky_inverse():
    """It reads whether an element of the diagonal is 0; the rest stays on the device."""

    def run(x):
        return with_gradient(lambda x: torch.cholesky_inverse(well_conditioned(x).triu(), upper=True), x)

    torch.testing.assert_close(on_the_cpu(run(A.to(DEVICE))), on_the_cpu(run(A)), rtol=1e-4, atol=1e-4)
    assert torch.cholesky_inverse(A[:0].to(DEVICE)).shape == (0, 5, 5)


@fails_on_stock
def test_least_squares_of_a_matrix_that_is_not_finite_are_nan():
    """LAPACK refuses it."""
    a = torch.stack([torch.eye(2), torch.tensor([[1.0, float("nan")], [0, 1]])]).to(DEVICE)
    found = on_the_device(lambda: torch.linalg.lstsq(a, torch.ones(2, 2, 1).to(DEVICE)).solution)
    assert found[0].flatten().tolist() == [1, 1]
    assert found[1].isnan().all()


@fails_on_stock
@pytest.mark.parametrize("name", LARGE)
def test_matrices_of_more_than_a_block(name, monkeypatch):
    linalg = importlib.import_module("torch_xla._lowerings.linalg")
    monkeypatch.setattr(linalg, "LARGEST_ON_CPU", 1000)
    x = matrices(100, 100, dtype=torch.float64)
    found = on_the_device(lambda: LARGE[name](x.to(DEVICE)))
    torch.testing.assert_close(found.cpu(), LARGE[name](x))


@fails_on_stock
@pytest.mark.parametrize(("loops", "size"), [(True, 6), (False, 7)], ids=["loops", "XLA's own"])
def test_small_matrices_by_loops_and_by_instructions_of_xla(loops, size, monkeypatch):
    """XLA's CPU takes a second or more to compile its own instruction for Cholesky's factor."""
    linalg = importlib.import_module("torch_xla._lowerings.linalg")
    monkeypatch.setattr(linalg, "LOOPS_ON_CPU", loops)
    x = matrices(2, size, size, dtype=torch.float64)
    diagonals = torch.ones(3, size, dtype=torch.float64)
    diagonals[1, 2], diagonals[2, -1] = -2, 0
    without_factor = torch.diag_embed(diagonals)

    def program(x, others):
        infos = torch.linalg.cholesky_ex(others).info, torch.linalg.cholesky_ex(others, upper=True).info
        return torch.linalg.cholesky_ex(definite(x)).L, *torch.linalg.qr(x), *torch.geqrf(x), *infos

    found = on_the_device(lambda: program(x.to(DEVICE), without_factor.to(DEVICE)))
    names = re.findall(r"= .* (cholesky|custom-call)\(", hlo(*found))
    assert len(names) == (0 if loops else 6)
    torch.testing.assert_close(on_the_cpu(found), program(x, without_factor))


@pytest.mark.passes_on_stock
@pytest.mark.parametrize("name", [n for n in CHECKED if n not in ("inv", "matrix_power")])
def test_a_matrix_without_an_answer_is_an_error(name):
    raises_as_the_cpu(name)


@fails_on_stock
@pytest.mark.parametrize("name", ["inv", "matrix_power"])
def test_the_inverse_of_a_singular_matrix_is_an_error(name):
    raises_as_the_cpu(name)


def raises_as_the_cpu(name):
    function, matrix, says = CHECKED[name]
    for x in (matrix, matrix.to(DEVICE)):
        with pytest.raises(RuntimeError, match=says):
            function(x)


@fails_on_stock
def test_bfloat16_is_computed_in_float32_and_rounded_once():
    narrow = A.to(DEVICE).bfloat16()
    found = on_the_device(lambda: torch.matrix_exp(narrow))
    assert torch.equal(found.cpu(), torch.matrix_exp(narrow.float()).bfloat16().cpu())


@pytest.mark.since("2.7", "tensors that stand for others, of which a graph is made once")
@fails_on_stock
def test_a_decomposition_is_one_operation():
    x = A.to(DEVICE)
    torch_xla.sync()
    ir(torch.linalg.lu_factor_ex(x).LU).expect("""\
%0 = f32[2,5,5] xla::device_data()
%1 = (f32[2,5,5], s32[2,5], s32[2]) xla::linalg_lu_factor_ex(%0)
return %1
""")


@pytest.mark.passes_on_stock
def test_what_is_declined_goes_where_it_went():
    x = torch.complex(A, A.flip(0))
    torch.testing.assert_close(torch.linalg.det(x.to(DEVICE)).cpu(), torch.linalg.det(x))
    with pytest.raises(RuntimeError):
        torch.linalg.lu_factor_ex(A.to(DEVICE), pivot=False)
    with pytest.raises(RuntimeError):
        torch.linalg.lu_factor_ex(A.to(DEVICE).bfloat16())


@fails_on_stock
@pytest.mark.parametrize("name", ["cholesky", "lu_factor", "ldl_factor", "solve", "inv"])
def test_what_a_factorization_reads_and_gives_is_made_by_the_run_for_its_errors(name):
    x = torch.tanh(A.to(DEVICE)) @ torch.tanh(A.to(DEVICE)).mT + 5 * torch.eye(5, device=DEVICE)
    found = getattr(torch.linalg, name)(*[x] * (1 + (name == "solve")))
    made = found if isinstance(found, torch.Tensor) else found[0]
    for tensor in (x, made):
        ir(tensor).expect("""\
%0 = f32[2,5,5] xla::device_data()
return %0
""")


DEFERRED = """\
import sys
import torch, torch_xla
import torch_xla.debug.metrics as metrics
from torch_xla import _linalg_errors
unit, zero = torch.eye(2, device="xla"), torch.zeros(2, 2, device="xla")
torch_xla.sync()
metrics.clear_all()
for _ in range(3):
    good = torch.linalg.cholesky(unit) @ torch.linalg.inv(unit)
    torch_xla.sync()
assert not metrics.executed_fallback_ops(), metrics.executed_fallback_ops()
bad = torch.linalg.inv(zero)
torch_xla.sync()
try:
    torch_xla.sync()
except torch.linalg.LinAlgError as error:
    print(error)
torch_xla.sync()
_linalg_errors.MOST = 3
calls = 0
try:
    for calls in range(10):
        torch.linalg.inv(zero)
except torch.linalg.LinAlgError:
    print(calls, "calls without a step")
_linalg_errors.MOST = 1000
torch_xla.sync()
torch.linalg.cholesky(torch.stack([unit, zero]))
"""


@fails_on_stock
def test_errors_of_linear_algebra_are_deferred_if_that_is_asked_for(tmp_path):
    """Of the last step they are told as the process ends; of a program without steps at a call."""
    program = tmp_path / "program.py"
    program.write_text(DEFERRED, encoding="utf-8")
    ran = completed(program, CASTOFF_DEFER_LINALG_ERRORS="1")
    assert "linalg.inv: The diagonal element 1 is zero" in ran.stdout
    assert "program.py:12, in a step that has run" in ran.stdout
    assert "3 calls without a step" in ran.stdout
    assert "linalg.cholesky: (Batch element 1): The factorization could not be completed" in ran.stderr
    assert "program.py:28, in a step that has run" in ran.stderr
    assert "linalg.inv" not in ran.stderr
