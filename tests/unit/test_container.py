"""Containers: which engine is taken, what it is told, and what it is lent of this machine."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

from castoff.container.__main__ import run as run_command_line
from castoff.container.builder import absolute_out, builder_image, builder_job, cache_volumes
from castoff.container.builder import run as run_job
from castoff.container.engine import Engine, Image, Job, find_engine
from castoff.container.network import Network, machine_network, without_folders
from castoff.container.train import assemble, labels, make_image
from castoff.core.errors import ContainerError
from castoff.core.places import ROOT

NOTHING = Network({}, None, ())


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with no engine on it; `_engine` puts some there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "git"):
        (folder / name).symlink_to(Path("/usr/bin") / name)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _engine(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


# ---- which engine


def test_the_first_engine_that_answers_is_taken(engines: Path) -> None:
    _engine(engines, "docker", 'echo "Cannot connect to the Docker daemon" >&2; exit 1')
    _engine(engines, "podman", "exit 0")
    _engine(engines, "buildah", "exit 0")
    assert find_engine().name == "podman"
    assert find_engine("buildah").name == "buildah"


def test_no_engine_is_an_error_that_says_of_each_why(engines: Path) -> None:
    _engine(engines, "docker", 'echo "Cannot connect to the Docker daemon" >&2; exit 1')
    with pytest.raises(ContainerError) as caught:
        find_engine()
    assert_expected_inline(
        caught.value.found,
        """\
docker: Cannot connect to the Docker daemon
           podman: not on PATH
           buildah: not on PATH""",
    )
    with pytest.raises(ContainerError, match="no container engine works"):
        find_engine("containerd")


def test_a_rootless_daemon_of_docker_is_told_from_one_of_root(engines: Path) -> None:
    _engine(engines, "docker", 'echo "[name=seccomp,profile=builtin name=rootless]"')
    assert find_engine().rootless
    _engine(engines, "docker", 'echo "[name=seccomp,profile=builtin]"')
    assert not find_engine().rootless


# ---- what it is told


IMAGE = Image(
    tag="localhost/x:1",
    context=Path("/context"),
    dockerfile="x.Dockerfile",
    stage="x",
    secrets={"network": Path("/s/network")},
    arguments={"BASE": "debian:12"},
    labels={"a": "b"},
)


def _lines(name: str, rootless: bool = False) -> str:
    job = Job(
        "localhost/x:1",
        ["/bin/x", "y z"],
        Path("/tree"),
        {Path("/tree"): "rw", Path("/ca"): "ro"},
        {"PIP_INDEX_URL": "https://user:password@index"},
        (1000, 100),
    )
    engine = Engine(name, name, rootless)
    commands = [engine.build(IMAGE), engine.exists(IMAGE.tag), *engine.run(job, "c")]
    return "\n".join(" ".join(command).replace(" --", "\n  --") for command in commands)


def test_what_docker_is_told() -> None:
    assert_expected_inline(
        _lines("docker"),
        """\
docker build
  --network host
  --file /context/x.Dockerfile
  --target x
  --secret id=network,src=/s/network
  --build-arg BASE=debian:12
  --label a=b
  --tag localhost/x:1 /context
docker image inspect localhost/x:1
docker run
  --name c
  --network host
  --user 1000:100
  --workdir /tree
  --volume /tree:/tree:rw
  --volume /ca:/ca:ro
  --env PIP_INDEX_URL
  --entrypoint /bin/x localhost/x:1 y z
docker rm
  --force c""",
    )


def test_what_podman_is_told() -> None:
    assert_expected_inline(
        _lines("podman", rootless=True),
        """\
podman build
  --network host
  --file /context/x.Dockerfile
  --format docker
  --layers=false
  --target x
  --secret id=network,src=/s/network
  --build-arg BASE=debian:12
  --label a=b
  --tag localhost/x:1 /context
podman image inspect localhost/x:1
podman run
  --name c
  --network host
  --user 1000:100
  --workdir /tree
  --volume /tree:/tree:rw
  --volume /ca:/ca:ro
  --env PIP_INDEX_URL
  --security-opt label=disable
  --userns keep-id
  --entrypoint /bin/x localhost/x:1 y z
podman rm
  --force c""",
    )


def test_what_buildah_is_told() -> None:
    assert_expected_inline(
        _lines("buildah"),
        """\
buildah build
  --network host
  --file /context/x.Dockerfile
  --format docker
  --layers=false
  --target x
  --secret id=network,src=/s/network
  --build-arg BASE=debian:12
  --label a=b
  --tag localhost/x:1 /context
buildah inspect
  --type image localhost/x:1
buildah from
  --name c localhost/x:1
buildah run
  --network host
  --user 1000:100
  --workingdir /tree
  --volume /tree:/tree:rw
  --volume /ca:/ca:ro
  --env PIP_INDEX_URL=https://user:password@index c
  -- /bin/x y z
buildah rm c""",
    )


def test_the_caller_is_root_inside_where_the_engine_maps_it() -> None:
    assert "--user 0:0" in _lines("docker", rootless=True)
    assert "--user 0:0" in _lines("buildah", rootless=True)
    assert "--user 1000:100" in _lines("podman", rootless=False)


# ---- what it is lent of this machine


def test_pips_settings_reach_pip_and_uv_in_a_container(tmp_path: Path) -> None:
    wheels, bundle = tmp_path / "wheels", tmp_path / "ca.crt"
    wheels.mkdir()
    bundle.touch()
    listing = (
        f"global.cert='{bundle}'\n"
        "global.index-url='https://user:password@index/simple'\n"
        f"global.extra-index-url='file://{wheels} https://other/simple file:///not/there'\n"
        f":env:.find-links='{wheels}'\n"
    )
    network = machine_network({"https_proxy": "http://proxy:3128", "UV_INSECURE_HOST": "index", "HOME": "/x"}, listing)
    assert network.certificates == bundle
    assert network.folders == (wheels,)
    text = "\n".join(f"{name}={value}" for name, value in sorted(network.variables.items())).replace(
        str(tmp_path), "/tmp"
    )
    assert_expected_inline(
        text,
        """\
PIP_EXTRA_INDEX_URL=file:///tmp/wheels https://other/simple
PIP_FIND_LINKS=/tmp/wheels
PIP_INDEX_URL=https://user:password@index/simple
UV_DEFAULT_INDEX=https://user:password@index/simple
UV_FIND_LINKS=/tmp/wheels
UV_INDEX=file:///tmp/wheels https://other/simple
UV_INDEX_STRATEGY=unsafe-best-match
UV_INSECURE_HOST=index
https_proxy=http://proxy:3128""",
    )

    variables, volumes = network.for_run()
    assert variables["SSL_CERT_FILE"] == variables["PIP_CERT"] == str(bundle)
    assert volumes == {wheels: "ro", bundle: "ro"}


def test_a_build_gets_it_as_secrets_that_only_we_can_read(tmp_path: Path) -> None:
    wheels, bundle = tmp_path / "wheels", tmp_path / "ca.crt"
    variables = {"PIP_EXTRA_INDEX_URL": f"file://{wheels} https://it's/simple", "PIP_FIND_LINKS": str(wheels)}
    secrets = without_folders(Network(variables, bundle, (wheels,))).for_build(tmp_path)
    assert secrets == {"ca.crt": bundle, "network": tmp_path / "network"}
    assert secrets["network"].stat().st_mode & 0o077 == 0
    script = '. "$0"; echo "$PIP_EXTRA_INDEX_URL $PIP_FIND_LINKS $SSL_CERT_FILE"'
    command = ["/bin/sh", "-c", script, secrets["network"]]
    shown = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["https://it's/simple", "/run/secrets/ca.crt"]


def test_a_machine_without_settings_gives_nothing() -> None:
    assert machine_network({}, "") == Network({"UV_INDEX_STRATEGY": "unsafe-best-match"}, None, ())


# ---- the builder


def test_the_builder_is_named_by_what_goes_into_it(tmp_path: Path) -> None:
    names = []
    for number, base in enumerate([None, None, "debian:13"]):
        work = tmp_path / str(number)
        work.mkdir()
        image = builder_image(ROOT, work, NOTHING, base)
        names.append(image.tag)
        assert sorted(path.name for path in image.context.iterdir()) == [
            "apt-install.sh",
            "builder.Dockerfile",
            "builder.packages",
            "requirements.lock",
        ]
    assert names[0] == names[1]
    assert len(set(names)) == 2


def test_the_build_runs_as_the_caller_with_tree_and_caches_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CASTOFF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    tree = tmp_path / "tree"
    subprocess.run(["git", "init", "--quiet", tree], check=True)
    job = builder_job(tree, "x", ["--target", "tpu", "--out", "out", "--json"], NOTHING, {})
    assert job.command == [
        *("/opt/castoff/bin/python", "-m", "castoff", "build", "--target", "tpu", "--json", "--out"),
        str(tmp_path / "out"),
    ]
    assert job.user == (os.getuid(), os.getgid())
    # .git is in the tree, and both caches are in one folder, for hard links.
    assert job.volumes == {tree: "rw", tmp_path / "out": "rw", tmp_path / "cache": "rw"}
    assert job.variables["CASTOFF_CACHE"] == str(tmp_path / "cache" / "castoff")


def test_a_worktree_sees_its_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path / "main"], check=True)
    git = ["git", "-C", tmp_path / "main", "-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*git, "worktree", "add", "--quiet", tmp_path / "other"], check=True)
    assert builder_job(tmp_path / "other", "x", [], NOTHING, {}).volumes[tmp_path / "main" / ".git"] == "ro"


def test_caches_in_different_places_are_mounted_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASTOFF_CACHE", str(tmp_path / "ours"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_volumes({}) == [tmp_path / "ours", tmp_path / "xdg" / "uv"]
    assert cache_volumes({"UV_CACHE_DIR": str(tmp_path / "uv")}) == [tmp_path / "ours", tmp_path / "uv"]


def test_the_arguments_of_the_build_are_handed_on() -> None:
    assert absolute_out(["--out", "/w", "-v"]) == (["-v", "--out", "/w"], [Path("/w")])
    assert absolute_out(["--target", "cpu"]) == (["--target", "cpu"], [])


def test_a_job_leaves_no_container_behind(engines: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    _engine(engines, "docker", f'echo "$1 $PIP_INDEX_URL" >>{log}; [ "$1" != run ] || exit 16')
    job = Job("x", ["true"], tmp_path, {}, {"PIP_INDEX_URL": "https://index"}, (0, 0))
    assert run_job(Engine("docker", str(engines / "docker"), False), job) == 16
    assert log.read_text().split("\n") == ["run https://index", "rm ", ""]


def test_build_sh_needs_nothing_but_the_engine(engines: Path, tmp_path: Path) -> None:
    for name in ("bash", "dirname", "env", "grep"):
        (engines / name).symlink_to(Path("/usr/bin") / name)
    _engine(engines, "docker", f'echo "$@" >>{tmp_path}/log; [ "$1" != image ] || exit 1')
    environment = {"PATH": str(engines), "PYTHON": sys.executable, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = ["bash", ROOT / "build.sh", "--docker", "--target", "tpu", "--out", tmp_path / "out"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    info, exists, build, run, removal = (tmp_path / "log").read_text().splitlines()
    assert info.startswith("info")
    assert exists.startswith("image inspect localhost/castoff-builder:")
    assert build.startswith("build --network host --file")
    assert run.endswith(f"-m castoff build --target tpu --out {tmp_path}/out")
    assert removal.startswith("rm --force castoff-")


# ---- the training image


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    folder = tmp_path / "dist" / "2.9-tpu"
    folder.mkdir(parents=True)
    entries = {}
    for project, version in (("torch", "2.9.0+castoff.1"), ("torch_xla", "2.9.0+castoff.1"), ("libtpu", "0.0.21")):
        name = f"{project}-{version}.whl"
        (folder / name).write_bytes(project.encode())
        entries[project] = {
            "file": name,
            "version": version,
            "sha256": hashlib.sha256(project.encode()).hexdigest(),
        }
    manifest = {
        "revision": "0123",
        "key": "4567",
        "target": "tpu",
        "python": "3.11",
        "pin": {"name": "2.9", "torch": "89ab", "torch_xla": "cdef"},
        "topics": [{"name": "torch/grad-dtype"}, {"name": "torch_xla/native-mul"}],
        "libtpu": entries.pop("libtpu"),
        "wheels": entries,
        "cuda_packages": [],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_labels_say_pins_topics_and_revision(dist: Path) -> None:
    found = labels(json.loads((dist / "manifest.json").read_text()))
    text = "\n".join(f"{name}={value}" for name, value in found.items() if "sha256" not in name)
    assert_expected_inline(
        text,
        """\
org.opencontainers.image.title=castoff
org.opencontainers.image.description=torch 2.9.0+castoff.1, torch_xla 2.9.0+castoff.1, for TPU
org.opencontainers.image.version=2.9.0+castoff.1
org.opencontainers.image.revision=0123
org.opencontainers.image.licenses=BSD-3-Clause
castoff.pin=2.9
castoff.pin.torch=89ab
castoff.pin.torch_xla=cdef
castoff.target=tpu
castoff.python=3.11
castoff.topics=torch/grad-dtype torch_xla/native-mul
castoff.key=4567
castoff.pin.libtpu=0.0.21""",
    )
    assert found["castoff.sha256.torch"] == hashlib.sha256(b"torch").hexdigest()


def test_the_context_has_the_wheels_as_links(dist: Path, tmp_path: Path) -> None:
    context = assemble(ROOT, dist, tmp_path)
    wheel = "torch-2.9.0+castoff.1.whl"
    assert (context / "dist" / wheel).samefile(dist / wheel)
    assert (context / "train.Dockerfile").is_file()
    # It has nothing but what a step of the Dockerfile uses.
    text = (context / "train.Dockerfile").read_text() + (context / "install.py").read_text()
    assert [path.name for path in context.iterdir() if path.name not in text] == []


def test_the_training_image_is_built_from_the_folder(dist: Path, engines: Path, tmp_path: Path) -> None:
    _engine(engines, "podman", f'echo "$@" >>{tmp_path}/log')
    engine = Engine("podman", str(engines / "podman"), False)
    assert make_image(ROOT, dist, engine, NOTHING) == "localhost/castoff-train:2.9-tpu"
    [line] = (tmp_path / "log").read_text().splitlines()
    for words in ("--build-arg DEVICE=TPU", "--build-arg CUDA_PACKAGES=install", "--label castoff.pin=2.9"):
        assert words in line
    assert [path.name for path in dist.parent.iterdir()] == ["2.9-tpu"]


def test_no_wheels_and_a_failing_engine_are_errors(
    dist: Path, engines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _engine(engines, "buildah", '[ "$1" = info ] || exit 125')
    command = ["train", "--target", "cpu", "--dist", str(dist.parent)]
    assert run_command_line(command) == ContainerError.exit_code
    assert "./build.sh --target cpu" in capsys.readouterr().err
    assert run_command_line(["train", "--target", "tpu", "--dist", str(dist.parent)]) == ContainerError.exit_code
    assert "exit status 125" in capsys.readouterr().err


# ---- what the Dockerfile runs


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "docker"))
    import install as module  # type: ignore[import-not-found]

    return module


def test_wheels_of_the_manifest_are_taken(install, dist: Path) -> None:
    manifest = install.read_manifest(dist)
    assert [path.name for path in install.wheels(dist, manifest, "torch_xla")] == [
        "torch_xla-2.9.0+castoff.1.whl",
        "libtpu-0.0.21.whl",
    ]


@pytest.mark.parametrize("name", ["torch_xla-2.9.0+castoff.1.whl", "libtpu-0.0.21.whl"])
def test_an_altered_or_missing_wheel_is_refused(install, dist: Path, name: str) -> None:
    manifest = install.read_manifest(dist)
    (dist / name).write_bytes(b"altered")
    with pytest.raises(install.RefusedError, match="is not the wheel that was built"):
        install.wheels(dist, manifest, "torch_xla")
    (dist / name).unlink()
    with pytest.raises(install.RefusedError, match="no such file"):
        install.wheels(dist, manifest, "torch_xla")


def test_wheels_for_another_cpython_are_refused(install, dist: Path) -> None:
    path = dist / "manifest.json"
    path.write_text(path.read_text().replace('"3.11"', '"3.12"'))
    with pytest.raises(install.RefusedError, match="expected wheels for CPython"):
        install.read_manifest(dist)
    path.unlink()
    with pytest.raises(install.RefusedError, match="of a castoff build"):
        install.read_manifest(dist)


def test_what_uv_misses_is_read(install) -> None:
    report = (
        "Checked 20 packages in 5ms\n"
        "The package `torch` requires `nvidia-cudnn-cu12==9.10.2.21 ; platform_system == 'Linux'`, but it's not "
        "installed\nThe package `torch` requires `triton==3.5.0`, but it's not installed\n"
    )
    assert install.missing(report) == {"nvidia-cudnn-cu12", "triton"}
