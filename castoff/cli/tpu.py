"""tpu: the TPU compiler, on a machine without a TPU."""

from __future__ import annotations

from typing import Annotated

import typer

from castoff.builder.environments import Environments
from castoff.cli.boundary import boundary
from castoff.cli.commands import command
from castoff.cli.options import (
    CallsOption,
    IndexOption,
    JsonOption,
    PinOption,
    ProgramPythonOption,
    VerboseOption,
    Wheels,
)
from castoff.core.console import Console
from castoff.core.context import command_context
from castoff.core.places import ROOT
from castoff.model.pin import DEFAULT_PIN, load_pin
from castoff.tpu import program as tpu_program

app = typer.Typer(
    help="`castoff tpu compile bench/tpu_step.py:step`\n\nThe TPU compiler, on a machine without a TPU.",
    no_args_is_help=True,
)


@command(app, "compile", "castoff tpu compile bench/tpu_step.py:step --topology v5e:2x2")
def tpu_compile_command(
    program: Annotated[str, typer.Argument(metavar="PROGRAM.py:FUNCTION", help="The function that is one step.")],
    topology: Annotated[
        str, typer.Option(help="The TPUs: a generation (v4, v5e, v5p, v6e, tpu7x) and the chips along each axis.")
    ] = "v5e:2x2",
    compare: Annotated[
        Wheels | None, typer.Option(help="Also run the function with stock wheels, and show both.")
    ] = None,
    python: ProgramPythonOption = None,
    calls: CallsOption = 2,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of XLA or libtpu. May be given more than once."),
    ] = None,
    pin: PinOption = DEFAULT_PIN,
    index: IndexOption = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Compile a step function for TPUs, without one.

    The function is called without arguments, on CPU-XLA; what it computes goes to the TPU compiler. Casts in
    the program, converts in the TPU's optimised HLO, memory on each device and estimated cycles are printed.
    Under SPMD the program sees as many devices as the topology has.
    """
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        request = tpu_program.parse_request(program, topology, calls, option or ())
        with command_context(console) as context:
            steps = tpu_program.compile_program(
                request,
                load_pin(ROOT / "pins", pin),
                python,
                compare_stock=compare is not None,
                indexes=tuple(index or ()),
                context=context,
            )
        data: dict[str, object] = {name: step.as_dict() for name, step in steps.items()}
        console.result(tpu_program.report(steps), {"topology": topology, **data})


@command(app, "environment", "export $(castoff tpu environment)")
def tpu_environment_command(
    topology: Annotated[
        str, typer.Option(help="The TPUs to compile for: tpu7x:2x2x1 has a compiler of its own.")
    ] = "v5e:2x2",
    pin: PinOption = DEFAULT_PIN,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Make the TPU compiler's environment if it does not exist, and print its Python and the folder of results.

    Tests that compile for TPUs read the two from CASTOFF_TPU_PYTHON and CASTOFF_TPU_RESULTS.
    """
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console, command_context(console) as context:
        python = Environments(context).tpu_compiler(load_pin(ROOT / "pins", pin), topology=topology)
        folder = context.cache.tpu
        text = f"CASTOFF_TPU_PYTHON={python}\nCASTOFF_TPU_RESULTS={folder}"
        console.result(text, {"python": str(python), "results": str(folder)})
