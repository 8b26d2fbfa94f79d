"""Building the native parts: what is refused and in which words, and what is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import native_builds
import pytest

from runtime import build_native
from runtime.build_native import first_error

ROOT = native_builds.NATIVE.parents[1]
NO_COMPILER = "there is no working C++ compiler; install one (g++ or clang++), or set CXX"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no include/calrt/calrt.hpp; give the SDK's root."),
        (["include/calrt/calrt.hpp"], "has no lib/libcalrt.so; give the SDK's root."),
    ],
)
def test_a_root_that_is_no_sdk(tmp_path: Path, files: list[str], message: str) -> None:
    root = tmp_path / "sdk"
    root.mkdir()
    for name in files:
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    with pytest.raises(native_builds.BuildFailed) as caught:
        native_builds.configure(native_builds.NATIVE, tmp_path / "build", CALRT_ROOT=root)
    assert f"CALRT_ROOT is {root}, which {message}" in first_error(str(caught.value))


def test_an_unknown_sanitizer(tmp_path: Path) -> None:
    with pytest.raises(native_builds.BuildFailed) as caught:
        native_builds.configure(native_builds.NATIVE, tmp_path / "build", CALEXEC_SANITIZE="memory")
    assert first_error(str(caught.value)) == 'CALEXEC_SANITIZE is "memory"; it may be empty, address or thread.'


@pytest.mark.parametrize("compiler", ["/nowhere/c++", "nobodys-c++"])
def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(native_builds.BuildFailed) as caught:
        native_builds.configure(native_builds.NATIVE, tmp_path / "build")
    assert first_error(str(caught.value)) == NO_COMPILER


def test_a_compiler_that_does_not_take_the_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a compiler, and the line says what it says."""
    monkeypatch.setenv("CXXFLAGS", "-fnobodys-flag")
    with pytest.raises(native_builds.BuildFailed) as caught:
        native_builds.configure(native_builds.NATIVE, tmp_path / "build")
    line = first_error(str(caught.value))
    assert re.fullmatch(
        r"the C\+\+ compiler /\S+ was found, but it does not compile a trivial program "
        r"with the flags of the environment \(CXX, CXXFLAGS, LDFLAGS\): \S+ error: .*-fnobodys-flag.*",
        line,
    )


def test_a_compiler_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(native_builds.BuildFailed) as caught:
        native_builds.configure(native_builds.NATIVE, tmp_path / "build")
    line = first_error(str(caught.value))
    assert re.fullmatch(r"the C\+\+ compiler /\S*false was found, but it does not compile .*: it says nothing", line)


def test_an_error_in_the_source_is_named_with_its_place(tmp_path: Path, other_root: Path) -> None:
    """The place is whole, although there is a space in it."""
    copy = tmp_path / "the native parts"
    shutil.copytree(native_builds.NATIVE, copy)
    source = copy / "shim" / "logits.cpp"
    lines = source.read_text(encoding="utf-8").splitlines()
    source.write_text("\n".join([*lines, "int broken = ;"]) + "\n", encoding="utf-8")
    with pytest.raises(native_builds.BuildFailed) as caught:
        native_builds.build(copy, tmp_path / "build", "calrt_c", CALRT_ROOT=other_root)
    assert first_error(str(caught.value)).startswith(f"{source}:{len(lines) + 1}:14: error: expected ")


def test_an_sdk_whose_numbers_differ_is_refused_by_the_compiler(tmp_path: Path, other_root: Path) -> None:
    """The C ABI hands statuses on as they are, so an SDK that numbers them otherwise must not compile silently."""
    root = tmp_path / "sdk"
    shutil.copytree(other_root, root, symlinks=True)
    header = root / "include" / "calrt" / "calrt.hpp"
    text = header.read_text(encoding="utf-8")
    assert "DONE_CCU_EXCEPTION = 3" in text
    header.write_text(text.replace("DONE_CCU_EXCEPTION = 3", "DONE_CCU_EXCEPTION = 9"), encoding="utf-8")
    with pytest.raises(native_builds.BuildFailed) as caught:
        native_builds.build(native_builds.NATIVE, tmp_path / "build", "calrt_c", CALRT_ROOT=root)
    assert "this SDK numbers BufStatus otherwise than calrt_c.h" in first_error(str(caught.value))


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            "x\nERROR: No matching distribution found for cmake>=3.20\n",
            "cmake is neither installed nor to be had from the package index; install cmake",
        ),
        (
            "ERROR: No matching distribution found for scikit-build-core>=1.1\n",
            "the package index has no scikit-build-core>=1.1, which the build needs",
        ),
        (
            "/usr/bin/ld: a.o: in function `f':\na.cpp:(.text+0x5): undefined reference to `calrt::infer()'\n",
            "undefined reference to `calrt::infer()'",
        ),
        ("/usr/bin/ld: cannot find -lcalrt: No such file\n", "cannot find -lcalrt: No such file"),
        (
            "CMake Error at CMakeLists.txt:9 (message):\n  CALRT_ROOT is /x,\n  which has\n  nothing.\n\n\nCall\n",
            "CALRT_ROOT is /x, which has nothing.",
        ),
        ("ERROR: Could not install packages: disk full\n", "Could not install packages: disk full"),
        (
            "a.cpp:1:2: warning: unused\nb.hpp:3:4: fatal error: x.h: No such file\nb.cpp:9: error: later\n",
            "b.hpp:3:4: fatal error: x.h: No such file",
        ),
        (
            "FAILED: x.o\n/usr/bin/c++ -o x.o\n  /home/my tree/a.cpp:1:2: error: no\n",
            "/home/my tree/a.cpp:1:2: error: no",
        ),
        ("nothing of interest\n", "the build failed without a message that is known"),
    ],
)  # fmt: skip
def test_one_line_about_the_first_error(log: str, line: str) -> None:
    assert first_error(log) == line


def test_a_failed_build_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip fails at once here: there is no project in the folder."""
    monkeypatch.setattr(build_native, "ROOT", tmp_path)
    assert build_native.main() == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"native: .*neither 'setup.py' nor 'pyproject.toml' found.* \(log: build/native.log\)\n", err)
    assert (tmp_path / "build" / "native.log").stat().st_size > 0


@pytest.mark.parametrize("build_type", ["Foo", "debug", "MinSizeRel", "Release "])
def test_an_unknown_build_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], build_type: str
) -> None:
    """CMake would take it, and build without optimisation."""
    monkeypatch.setattr(build_native, "ROOT", tmp_path)
    monkeypatch.setenv("BUILD_TYPE", build_type)
    assert build_native.main() == 1
    allowed = "allowed are Release, Debug, RelWithDebInfo"
    assert capsys.readouterr() == ("", f"native: BUILD_TYPE is {build_type!r}; {allowed}\n")
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize("build_type", ["", *build_native.BUILD_TYPES])
def test_the_build_types_of_cmake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], build_type: str
) -> None:
    """Control: these reach pip, which fails because there is no project; and CMakeLists.txt names the same."""
    monkeypatch.setattr(build_native, "ROOT", tmp_path)
    monkeypatch.setenv("BUILD_TYPE", build_type)
    assert build_native.main() == 1
    assert "neither 'setup.py' nor 'pyproject.toml' found" in capsys.readouterr().err
    cmake = (native_builds.NATIVE / "CMakeLists.txt").read_text(encoding="utf-8")
    assert build_type in cmake


# -- installing: slow, for pip makes an environment of its own --------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What git knows of this tree, and new files that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "tree" / name)
    return tmp_path / "tree"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python with our dependencies and without us."""
    venv.create(tmp_path / "venv", with_pip=True)
    ours = next(p for p in map(Path, sys.path) if p.name == "site-packages")
    theirs = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    seen = tmp_path / "dependencies"
    seen.mkdir()
    for path in ours.iterdir():
        if "calexec" not in path.name and path.name not in ("runtime", "machines", "checker", "diagrams", "examples"):
            (seen / path.name).symlink_to(path)
    (theirs / "dependencies.pth").write_text(f"{seen}\n")
    return tmp_path / "venv" / "bin" / "python"


def install(python: Path, *arguments: object, path: str | None = None) -> None:
    command = [str(a) for a in (python, "-m", "pip", "install", "--no-deps", "--quiet", *arguments)]
    environment = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX")} | ({"PATH": path} if path else {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def says(python: Path, code: str, folder: Path) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, cwd=folder)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


VERSION = "from runtime.calrt import Library; print(Library.load().version())"
PLACE = "import checker.native, pathlib; print(pathlib.Path(checker.native.__file__).with_name('search.c').is_file())"


@pytest.mark.nightly
def test_the_pure_package_needs_no_compiler(tree: Path, python: Path, tmp_path: Path) -> None:
    install(python, "-C", "wheel.cmake=false", "-e", tree, path=str(tmp_path))
    assert says(python, PLACE, tmp_path) == "True"
    assert "libcalrt_c.so is not built; run `make native`" in says(python, VERSION, tmp_path)


@pytest.mark.nightly
def test_the_installed_package_has_its_libraries(tree: Path, python: Path, tmp_path: Path) -> None:
    """Not editable: nothing of the tree is needed afterwards."""
    install(python, tree)
    shutil.rmtree(tree)
    assert says(python, VERSION, tmp_path) == "(0, '0.7.6')"
    assert says(python, PLACE, tmp_path) == "True"


@pytest.mark.nightly
def test_the_source_distribution_is_complete(tree: Path, python: Path, tmp_path: Path) -> None:
    install(python, "scikit-build-core>=1.1", "pathspec", "packaging")
    make = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([python, "-c", make], cwd=tree, check=True, timeout=60)
    install(python, *tmp_path.glob("calexec-*.tar.gz"))
    assert says(python, VERSION, tmp_path) == "(0, '0.7.6')"


@pytest.mark.nightly
def test_pip_builds_over_another_sdk(tree: Path, python: Path, other_root: Path, tmp_path: Path) -> None:
    """By the same command as `make native`, editable."""
    environment = dict(os.environ, CALRT_ROOT=str(other_root), BUILD_TYPE="Debug")
    done = subprocess.run([python, "-m", "runtime.build_native"], cwd=tree, env=environment, timeout=600)
    assert done.returncode == 0
    assert says(python, VERSION, tmp_path) == "(0, '9.8.7-other')"
    order = "from runtime.calrt import Library; print(Library.load().enforces_call_order())"
    assert says(python, order, tmp_path) == "True"
