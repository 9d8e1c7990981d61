"""torch's own samples of every operator, on stock wheels and on castoff's, against torch's CPU kernels.

--write runs tests/operators/sweep.py in both environments. What differs on castoff's wheels goes, with its reason, to
bench/measured/operators.json, a line for each operator and way to differ, and the page's part to docs/operators.md.
--check runs it on castoff's wheels, and fails where something differs that is not recorded, or something recorded does
not differ any more. An error near the limit, between half of it and twice of it, is neither: another processor rounds
otherwise. Either runs the dtypes and samples that CI has the time for, or with --whole all of them; --check those of
one operator in four, others each day, and of all with CASTOFF_DAY=all (tests/slices.py).

After a mend, --write --recorded runs only what was recorded, in minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer
from shared import compact_json
from shared.operator_reasons import REASONS, Reason, reason_of
from shared.pages import put
from shared.side_by_side import environment_with

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "operators"))
import plan  # noqa: E402

SWEEP = ROOT / "tests" / "operators" / "sweep.py"
MEASURED = ROOT / "bench" / "measured" / "operators.json"
DOCUMENT = ROOT / "docs" / "operators.md"
BEGIN = "<!-- sweep: made by bench/operator_sweep.py --write -->"
END = "<!-- sweep: end -->"

NEAR = 2.0
"""An error of so many times the limit, or of so small a part of it, may be on its other side on another processor."""
RAISING = ("raises", "raises late", "refused late", "dies", "hangs")
FAMILIES = {
    "linalg": ("linalg.", "cholesky", "geqrf", "lu", "ormqr", "pca_lowrank", "pinverse", "qr", "svd", "triangular_"),
    "fft": ("fft.", "istft", "stft"),
    "sparse": ("sparse.", "to_sparse"),
}

SELECTION = {"quick": ("--quick",), "whole": ()}
"""What is run, as the options of the sweep."""
SAYS = {
    "quick": f"{plan.QUICK} samples of each operator, in float32, bfloat16, int64 and one more dtype",
    "whole": f"At most {plan.ALL} samples of each operator and dtype",
}

Row = dict[str, Any]
Key = tuple[str, str, str, int]
Record = dict[str, Any]


# ---- running


def swept(python: Path, *arguments: str) -> list[Row]:
    """The rows of the sweep in an environment."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [str(python), str(SWEEP), "--json", str(out), *arguments]
        if subprocess.run(command, env=environment_with(), check=False).returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed, see above")
        rows: list[Row] = json.loads(out.read_text(encoding="utf-8"))
    return rows


def kept(keep: Path | None, name: str, python: Path, *arguments: str) -> list[Row]:
    """The rows of a sweep; those in the folder of --keep if they are there."""
    path = keep / f"{name}.json" if keep else None
    if path is not None and path.exists():
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
        return rows
    rows = swept(python, *arguments)
    if path is not None:
        path.write_text(json.dumps(rows), encoding="utf-8")
    return rows


# ---- the record


def judged(rows: list[Row]) -> dict[Key, Row]:
    """The rows with a verdict."""
    return {(r["op"], r["dtype"], r["phase"], r["number"]): r for r in rows if "kind" in r}


def differing(rows: list[Row]) -> dict[Key, Row]:
    return {key: row for key, row in judged(rows).items() if row["kind"] not in ("same", "no samples")}


def counts(differences: dict[Key, str]) -> dict[str, int]:
    """Calls, a sample with a dtype each, by what differs: in a call both a result and a gradient may."""
    calls: dict[str, set[tuple[str, str, int]]] = defaultdict(set)
    operators: dict[str, set[str]] = defaultdict(set)
    for (op, dtype, _, number), kind in differences.items():
        group = "raises" if kind in RAISING else "silent"
        for name in (kind, group + " in all"):
            calls[name].add((op, dtype, number))
        operators[group].add(op)
    found = {kind: len(calls[kind]) for kind in sorted(calls)}
    return found | {f"{group}: operators": len(operators[group]) for group in sorted(operators)}


def lines_of(differences: dict[Key, Row], table: tuple[Reason, ...] | None = REASONS) -> list[Row]:
    """A line for each operator, phase, kind and, with a table of them, reason."""
    grouped: dict[tuple[str, str, str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for (op, dtype, phase, number), row in differences.items():
        grouped[op, phase, row["kind"], reason_of(row, table) if table else ""][dtype].append(number)
    return [
        {
            "operator": op,
            "phase": phase,
            "kind": kind,
            **({"reason": reason} if table else {}),
            "samples": {dtype: sorted(numbers[dtype]) for dtype in plan.DTYPES if dtype in numbers},
        }
        for (op, phase, kind, reason), numbers in sorted(grouped.items())
    ]


def recorded(lines: list[Row]) -> dict[Key, str]:
    """The kind of each recorded difference."""
    return {
        (line["operator"], dtype, line["phase"], number): line["kind"]
        for line in lines
        for dtype, numbers in line["samples"].items()
        for number in numbers
    }


def record_of(selection: str, stock: list[Row], castoff: list[Row]) -> Record:
    operators = sorted({row["op"] for row in castoff})
    return {
        "selection": selection,
        "operators": len(operators),
        "calls": sum(len(row["chosen"]) for row in castoff if "chosen" in row),
        "on the CPU": sorted({row["op"] for row in castoff if "fallback" in row}),
        "families": {
            name: [op for op in operators if op.startswith(beginnings)] for name, beginnings in FAMILIES.items()
        },
        "differs": lines_of(differing(castoff)),
        "differs on stock": lines_of(differing(stock), None),
    }


def mended(record: Record) -> dict[Key, str]:
    """What differs on stock, of the operators and dtypes of which nothing differs on castoff's wheels."""
    here = {(op, dtype) for op, dtype, *_ in recorded(record["differs"])}
    return {key: kind for key, kind in recorded(record["differs on stock"]).items() if key[:2] not in here}


def text_of(record: Record) -> str:
    """The record as JSON with a line for each difference."""
    lists = [key for key in ("differs", "differs on stock") if key in record]
    text = compact_json.dumps({key: value for key, value in record.items() if key not in lists}, depth=1)[:-3]
    for key in lists:
        lines = ",\n".join(" " + json.dumps(line) for line in record[key])
        text += f',\n "{key}": [\n{lines}\n ]'
    return text + "\n}\n"


def again(record: Record, python: Path, also: list[str]) -> Record:
    """The record after its operators, and some more, were run again."""
    operators = sorted({*also, *(line["operator"] for line in record["differs"])})
    rows = swept(python, *SELECTION[record["selection"]], *(word for op in operators for word in ("--op", op)))
    return {**record, "differs": lines_of(differing(rows))}


# ---- the comparison


def by_processor(line: dict[str, Any]) -> bool:
    """Whether a recorded difference may be gone on another processor.

    That decides whether XLA:CPU takes a number below the smallest normal one for 0, and how the libraries of a
    factorization or a Fourier transform round.
    """
    reason = line.get("reason")
    return reason == "below normal" or (reason == "library" and line["kind"] == "value")


def unlike(record: Record, rows: list[Row]) -> list[str]:
    """What is not as recorded, of the samples that were run."""
    known, found = recorded(record["differs"]), judged(rows)
    ran = {(r["op"], r["dtype"]): {-1, *r["chosen"]} for r in rows if "chosen" in r}
    problems = []
    for key, row in differing(rows).items():
        near = row["kind"] == "value" and row.get("ratio", NEAR) <= NEAR
        if known.get(key) != row["kind"] and not (near and key not in known):
            was = f"; recorded is: {known[key]}" if key in known else ", and is not recorded"
            problems.append(f"{name_of(key)}: {row['kind']}: {row['detail'][:120]}{was}")
    lasting = [line for line in record["differs"] if not by_processor(line)]
    for key, kind in recorded(lasting).items():
        op, dtype, _, number = key
        row = found.get(key, {"kind": "same"})
        if number not in ran.get((op, dtype), ()) or row["kind"] != "same":
            continue
        if row.get("ratio", 0.0) < 1 / NEAR:
            problems.append(f"{name_of(key)}: recorded as {kind}, and is right")
    return sorted(problems)


def refuse(problems: list[str], record: Path, script: str) -> None:
    """Raises SystemExit with what is not as recorded, if anything is not."""
    if problems:
        shown = "\n".join(problems[:60])
        raise SystemExit(
            f"{len(problems)} differences from what {record.relative_to(ROOT)} records:\n{shown}\n"
            f"Mend what differs and is not recorded. What is right now: {script}."
        )


def name_of(key: Key) -> str:
    op, dtype, phase, number = key
    return f"{op} of {dtype}, sample {number}, {phase}"


# ---- the page

HOW = {
    "alias": "other elements change when the result or the input is written to",
    "device": "the result is on the CPU",
    "distribution": "drawn from another distribution",
    "dtype": "wrong dtype",
    "shape": "wrong shape",
    "type": "a result or gradient is missing, or is there and should not be",
    "value": "wrong value",
    "unrefused": "is not refused, and not as if promoted",
    "raises": "raises at the call",
    "raises late": "raises when the graph runs",
    "refused late": "raises when the graph runs, not at the call",
    "dies": "ends the process",
    "hangs": "does not end",
}


def page(record: Record) -> str:
    what = f"{SAYS[record['selection']]}, on CPU-XLA. A call is one sample with one dtype."
    differs = reasons(record, "## What still differs on castoff", REASONS)
    stock = counts(recorded(record["differs on stock"]))
    return "\n\n".join([BEGIN, what, summary(record, stock), *mends(record), *differs, families(record), END])


def summary(record: Record, stock: dict[str, int]) -> str:
    """How many calls differ on either wheels, by how; of stock's the counts are given."""
    castoff = counts(recorded(record["differs"]))
    rows = [("silently different calls", "silent in all"), ("… in so many operators", "silent: operators")]
    rows += [(f"… {HOW[kind]}", kind) for kind in HOW if kind not in RAISING]
    rows += [("raising calls", "raises in all"), ("… in so many operators", "raises: operators")]
    rows += [(f"… {HOW[kind]}", kind) for kind in RAISING]
    lines = [
        f"| {title} | {stock.get(key, 0):,} | {castoff.get(key, 0):,} |"
        for title, key in rows
        if stock.get(key) or castoff.get(key)
    ]
    title = f"| {record['operators']} operators, {record['calls']:,} calls | stock | castoff |"
    return "\n".join([title, "|---|---|---|", *lines])


def mends(record: Record) -> list[str]:
    """What stock gets wrong and castoff right, a row for each way and set of dtypes."""
    silent, raising = defaultdict(set), defaultdict(set)
    for (op, dtype, phase, _), kind in mended(record).items():
        (raising if kind in RAISING else silent)[how(kind, phase), op].add(dtype)
    parts = ["## What castoff mends", "Operators and dtypes of which stock gets a call wrong, and castoff none."]
    for title, found in (("Silently different on stock", silent), ("Raises or ends the process on stock", raising)):
        grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
        for (way, op), dtypes in found.items():
            grouped[way, ", ".join(d for d in plan.DTYPES if d in dtypes)].append(op)
        head = [
            f"### {title}: {len({op for _, op in found})} operators",
            "",
            "| stock | castoff | dtypes | operators |",
        ]
        rows = [
            f"| {way} | right | {dtypes} | {names(sorted(ops))} |" for (way, dtypes), ops in sorted(grouped.items())
        ]
        parts.append("\n".join([*head, "|---|---|---|---|", *rows]))
    return parts


def how(kind: str, phase: str) -> str:
    return HOW[kind] + ("" if phase in ("forward", "alias", "distribution") else ", of a gradient")


def reasons(record: Record, title: str, table: tuple[Reason, ...]) -> list[str]:
    """A section for each reason: its text, and the operators by dtypes and by how they differ."""
    parts = [title]
    for reason in table:
        lines = [line for line in record["differs"] if line["reason"] == reason.key]
        if not lines:
            continue
        grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
        for line in lines:
            grouped[how(line["kind"], line["phase"]), ", ".join(line["samples"])].append(line["operator"])
        calls = {(op, dtype, n) for (op, dtype, _, n) in recorded(lines)}
        rows = [
            f"| {way} | {dtypes} | {names(sorted(set(operators)))} |"
            for (way, dtypes), operators in sorted(grouped.items())
        ]
        head = ["| how | dtypes | operators |", "|---|---|---|"]
        parts.append("\n".join([f"### {reason.title}: {len(calls)} calls", "", reason.text, "", *head, *rows]))
    return parts


def families(record: Record) -> str:
    """linalg, fft and sparse, as what they are."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for line in record["differs"]:
        kinds[line["operator"]].add("raises" if line["kind"] in RAISING else "silent")
    lines = ["## linalg, fft and sparse", "", "| family | right | silently different | raise |", "|---|---|---|---|"]
    for family, operators in record["families"].items():
        cells = [
            [op for op in operators if op not in kinds],
            [op for op in operators if "silent" in kinds.get(op, ())],
            [op for op in operators if "raises" in kinds.get(op, ())],
        ]
        lines.append(f"| {family} | " + " | ".join(f"{len(c)}: {names(c)}" if c else "none" for c in cells) + " |")
    on_the_cpu = names(record["on the CPU"])
    return "\n".join([*lines, "", f"Operators that torch_xla hands to the CPU, in part or all: {on_the_cpu}."])


def names(operators: list[str]) -> str:
    return ", ".join(f"`{op}`" for op in operators)


def main(
    *,
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    stock: Annotated[Path | None, typer.Option(help="The same with stock wheels; for --write.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Put what is found into the record and the page.")] = False,
    recorded_only: Annotated[
        bool, typer.Option("--recorded", help="With --write: run the operators that are in the record.")
    ] = False,
    op: Annotated[list[str] | None, typer.Option(help="With --recorded: run this operator, too.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare what is found with the record.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Every dtype and sample: half an hour on two cores.")] = False,
    keep: Annotated[
        Path | None, typer.Option(help="A folder for what the sweeps find; what is there is not run again.")
    ] = None,
) -> None:
    """.venv/bin/python bench/operator_sweep.py --patched PATCHED/bin/python --check

    Show for every operator of torch whether it returns what torch returns.
    """
    selection = "whole" if whole else "quick"
    if write:
        if recorded_only:
            record = again(read(), patched, op or [])
        elif stock is None:
            raise SystemExit("expected --stock beside --write, or --recorded; found neither")
        else:
            options = SELECTION[selection]
            on_stock, here = kept(keep, "stock", stock, *options), kept(keep, "castoff", patched, *options)
            record = record_of(selection, on_stock, here)
        MEASURED.write_text(text_of(record), encoding="utf-8")
        put(DOCUMENT, BEGIN, END, page(record))
        return
    record = read()
    if not check:
        print(page(record))
        return
    if page(record) not in DOCUMENT.read_text(encoding="utf-8"):
        raise SystemExit("docs/operators.md is not as bench/measured/operators.json says: run with --write --recorded")
    if whole and record["selection"] != "whole":
        raise SystemExit("expected a record of the whole sweep, found what CI runs: run with --write --whole first")
    part = () if whole else ("--of-the-day",)
    problems = unlike(record, kept(keep, "castoff", patched, *SELECTION[selection], *part))
    refuse(problems, MEASURED, "bench/operator_sweep.py --write --recorded")


def read() -> Record:
    record: Record = json.loads(MEASURED.read_text(encoding="utf-8"))
    return record


if __name__ == "__main__":
    typer.run(main)
