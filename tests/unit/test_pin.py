from pathlib import Path

import pytest
from expecttest import assert_expected_inline
from made_up import PYTHON, Tree

from castoff.core.errors import PinError
from castoff.core.places import ROOT
from castoff.model.pin import load_pin


@pytest.fixture
def pin_file(tree: Tree) -> Path:
    tree.finish()
    return tree.root / "pins" / "2.9.toml"


def test_our_own_pin() -> None:
    pin = load_pin(ROOT / "pins", "2.9")
    assert pin.pythons == ("3.10", "3.11", "3.12", "3.13")
    assert {wheel.variant for wheel in pin.accepted("torch", "3.11")} == {"cuda", "cpu"}
    assert len(pin.accepted("torch_xla", "3.13")) == 1
    assert pin.runtime.libtpu == "0.0.21"


def test_our_own_older_pins() -> None:
    for name in ("2.6", "2.1"):
        pin = load_pin(ROOT / "pins", name)
        assert (pin.pythons, pin.cxx11_abi) == (("3.10", "3.11"), 0)
        assert pin.platform_of("torch") == "manylinux_2_17_x86_64"
    assert pin.torch_xla.requires == ("numpy<2", "packaging")


def test_our_own_pin_for_tpus() -> None:
    pin = load_pin(ROOT / "pins", "2.9")
    tpu = pin.for_tpu()
    assert set(tpu.wheels) == {"3.10", "3.11", "3.12"}
    lock = tpu.compiler.read_text()
    for line in (f"libtpu=={pin.runtime.libtpu}", f"jax=={pin.runtime.jax}", f"jaxlib=={pin.runtime.jaxlib}"):
        assert f"{line} " in lock
    assert all(f"sha256:{tpu.wheels[python]}" in lock for python in tpu.compiler_pythons)
    assert "http" not in lock


def test_a_generation_that_the_pins_own_libtpu_does_not_know_has_a_later_one() -> None:
    pin = load_pin(ROOT / "pins", "2.9")
    own, later = pin.for_tpu(), pin.for_tpu("tpu7x:2x2x1")
    assert all(pin.for_tpu(topology) == own for topology in ("v4:2x2x1", "v5e:2x2", "v6e:4x4", "v7x:2x2x1"))
    assert later.compiler != own.compiler
    assert f"libtpu=={later.libtpu} " in later.compiler.read_text()
    assert f"jaxlib=={later.jaxlib} " in later.compiler.read_text()
    assert "http" not in later.compiler.read_text()
    assert later.wheels == {}  # no TPU host installs it


GENERATION = """[tpu.generations.tpu7x]
libtpu = "0.0.42"
jax = "0.10.2"
jaxlib = "0.10.2"
compiler = "2.9-tpu7x.lock"
compiler_pythons = ["3.11"]

"""


def test_the_lock_file_of_a_later_compiler_must_be_there(pin_file: Path) -> None:
    pin_file.write_text(pin_file.read_text().replace("[tpu.libtpu]", f"{GENERATION}[tpu.libtpu]", 1))
    with pytest.raises(PinError, match=r"tpu.generations.tpu7x.compiler is wrong"):
        load_pin(pin_file.parent, "2.9")
    lock = pin_file.with_name("2.9-tpu7x.lock")
    lock.touch()
    assert load_pin(pin_file.parent, "2.9").for_tpu("tpu7x:4x4x4").compiler == lock


def test_a_python_without_libtpu_is_named_with_those_that_have_it() -> None:
    with pytest.raises(PinError) as caught:
        load_pin(ROOT / "pins", "2.9").libtpu_sha256("3.13")
    assert "3.10, 3.11, 3.12" in caught.value.expected


def test_a_pin_may_say_nothing_of_tpus(pin_file: Path) -> None:
    text = pin_file.read_text()
    start = text.index("[tpu]")
    pin_file.write_text(text[:start])
    with pytest.raises(PinError, match="has no TPU part"):
        load_pin(pin_file.parent, "2.9").for_tpu()


def test_a_python_without_wheels_is_named_with_those_that_have_them() -> None:
    with pytest.raises(PinError) as caught:
        load_pin(ROOT / "pins", "2.9").accepted("torch", "3.9")
    assert "3.10, 3.11, 3.12, 3.13" in caught.value.expected
    assert "3.9" in caught.value.found


def test_an_unknown_pin_is_named_with_the_known_ones(pin_file: Path) -> None:
    with pytest.raises(PinError) as caught:
        load_pin(pin_file.parent, "2.8")
    assert "2.9" in caught.value.expected


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("cxx11_abi = 1", "cxx11_abi = 2", "cxx11_abi"),
        ("cxx11_abi = 1", "cxx11_abi = true", "cxx11_abi"),
        ("cxx11_abi = 1", "", "cxx11_abi"),
        ("cxx11_abi = 1", "cxx11_abi = 1\nsurprise = 1", "surprise"),
        ('jax = "0.7.1"', 'jax = ">=0.7"', "runtime.jax"),
        ("[wheels.torch.any]", "[wheels.torch.gpu]", "wheels.torch"),
        ("[wheels.torch.any]", "[wheels.triton.any]", "wheels"),
        ('name = "2.9"', 'name = "2.6"', "name"),
        ('tag = "v2.9.0"', 'tag = "v2.9.0"\nmore = 1', "torch.more"),
        ('tag = "v2.9.0"', 'tag = "v2.9.0"\nrequires = ["numpy from somewhere"]', "torch.requires[0]"),
        ('tag = "v2.9.0"', 'tag = "v2.9.0"\nplatform = "linux_x86_64"', "torch.platform"),
        ("a" * 40, "a" * 39, "torch.commit"),
        (f'"{PYTHON}" = "', f'"{PYTHON}" = "0', f"wheels.torch.any.{PYTHON}"),
        ("manylinux_2_28_x86_64", "linux_x86_64", "platform"),
        ('compiler = "2.9-tpu.lock"', 'compiler = "2.9.lock"', "tpu.compiler"),
        ('compiler = "2.9-tpu.lock"', 'compiler = "../2.9-tpu.lock"', "tpu.compiler"),
        ("compiler_pythons = [", "compiler_pythons = [] #", "tpu.compiler_pythons"),
        ("[tpu]\nplatform", "[tpu]\nsurprise = 1\nplatform", "tpu.surprise"),
        ('[tpu.libtpu]\n"3.', '[tpu.libtpu]\n"', f"tpu.libtpu.{PYTHON.partition('.')[2]}"),
        ("[tpu.libtpu]\n", "[tpu.libtpu]\n#", "tpu.libtpu"),
    ],
)
def test_a_malformed_file_is_refused_by_key(pin_file: Path, old: str, new: str, key: str) -> None:
    text = pin_file.read_text()
    assert old in text
    pin_file.write_text(text.replace(old, new, 1))
    with pytest.raises(PinError) as caught:
        load_pin(pin_file.parent, "2.9")
    assert f"{key} is wrong" in caught.value.summary
    assert str(pin_file) in caught.value.next_step


def test_everything_that_is_wrong_is_said_at_once(pin_file: Path) -> None:
    text = pin_file.read_text().replace('jax = "0.7.1"', "").replace('tag = "v2.9.0"', 'tag = "2.9.0"\nmore = 1', 1)
    pin_file.write_text(text.replace("cxx11_abi = 1", 'cxx11_abi = "1"'))
    with pytest.raises(PinError) as caught:
        load_pin(pin_file.parent, "2.9")
    assert_expected_inline(
        f"{caught.value.summary}\n{caught.value.expected}\n{caught.value.found}",
        """\
2.9.toml: cxx11_abi, torch.tag, torch.more, runtime.jax are wrong

  cxx11_abi: Input should be a valid integer
  torch.tag: a tag like 'v2.9.0'
  torch.more: only the keys version, repository, tag, commit, source_package, platform, requires
  runtime.jax: The version of JAX of the same time.

  cxx11_abi: '1'
  torch.tag: '2.9.0'
  torch.more: an unknown key
  runtime.jax: no such key""",
    )


def test_a_hash_given_twice_is_refused(pin_file: Path) -> None:
    text = pin_file.read_text()
    entry = text[text.index("[wheels.torch.any]") : text.index("[torch_xla]")]
    other = '[variants.cpu]\ntitle = "another"\n'
    pin_file.write_text(f"{text}\n{other}{entry.replace('any', 'cpu')}")
    with pytest.raises(PinError) as caught:
        load_pin(pin_file.parent, "2.9")
    assert "twice" in caught.value.found


def test_a_file_that_is_not_toml_is_refused(pin_file: Path) -> None:
    pin_file.write_text("name = ")
    with pytest.raises(PinError, match="not TOML"):
        load_pin(pin_file.parent, "2.9")
