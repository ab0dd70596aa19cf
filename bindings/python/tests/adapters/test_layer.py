"""The layer for Lambda, made from the wheel that is installed or built."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tollgate_rs
from adapters.conftest import ROOT

SCRIPT = ROOT / "bindings/python/scripts/lambda_layer.py"


def wheel_of_the_package(folder: Path) -> Path:
    """A wheel of the package as it is installed here: a wheel is a zip with these files and metadata."""
    package = Path(tollgate_rs.__file__).parent
    wheel = folder / "tollgate_rs-0.1.0-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as target:
        for file in sorted(package.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                target.write(file, f"tollgate_rs/{file.relative_to(package)}")
        target.writestr("tollgate_rs-0.1.0.dist-info/METADATA", "Name: tollgate-rs\nVersion: 0.1.0\n")
    return wheel


def test_a_function_imports_the_package_from_the_unpacked_layer(tmp_path: Path) -> None:
    wheel = wheel_of_the_package(tmp_path)
    for name in ("one.zip", "two.zip"):
        subprocess.run([sys.executable, SCRIPT, wheel, tmp_path / name], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as layer:
        assert all(name.startswith("python/") for name in layer.namelist())
        layer.extractall(tmp_path / "opt")
    code = """if True:
        import sys
        import tollgate_rs
        assert tollgate_rs.__file__.startswith(sys.argv[1]), tollgate_rs.__file__
        limit = {"name": "burst", "unit": "requests", "rule": "token-bucket", "capacity": 1, "refill": "1/s"}
        gate = tollgate_rs.Gate.memory([{"name": "api", "limits": [limit]}])
        gate.acquire_sync("api", "alice")
        assert gate.try_acquire("api", "alice") is None
        print("works")
    """
    # As in Lambda: without the packages of this environment, with the layer on the path.
    opt = str(tmp_path / "opt" / "python")
    command = [sys.executable, "-S", "-c", code, opt]
    result = subprocess.run(command, env={"PYTHONPATH": opt}, capture_output=True, text=True)
    assert result.stdout == "works\n", result.stderr


def test_what_is_no_wheel_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("lambda_layer", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.main(["setup.py", "layer.zip"]) == 2
    assert "maturin build" in capsys.readouterr().err
    assert script.main([]) == 2
