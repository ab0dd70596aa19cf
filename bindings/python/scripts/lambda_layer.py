"""Makes a layer for AWS Lambda from a wheel: `python lambda_layer.py WHEEL LAYER.zip`.

Lambda adds the folder `python` of a layer to the path. The same wheel always makes the same bytes.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

#: The earliest time that a zip can hold.
EPOCH = (1980, 1, 1, 0, 0, 0)

#: The largest size of a layer and its function, unpacked, in bytes.
UNPACKED_MAX = 262_144_000


def make_layer(wheel: Path, layer: Path) -> int:
    """Writes the layer and returns its unpacked size."""
    size = 0
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(layer, "w", zipfile.ZIP_DEFLATED) as target:
        for name in sorted(source.namelist()):
            if name.endswith("/"):
                continue
            content = source.read(name)
            size += len(content)
            entry = zipfile.ZipInfo(f"python/{name}", EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            # Readable for the user of the function, and the native module executable.
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            target.writestr(entry, content)
    return size


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: lambda_layer.py WHEEL LAYER.zip", file=sys.stderr)
        return 2
    wheel, layer = Path(arguments[0]), Path(arguments[1])
    if wheel.suffix != ".whl" or not wheel.is_file():
        print(f"{wheel} is not a wheel; build one with maturin build", file=sys.stderr)
        return 2
    size = make_layer(wheel, layer)
    print(f"{layer}: {layer.stat().st_size:,} bytes, {size:,} unpacked")
    if UNPACKED_MAX < size:
        print(f"Lambda takes at most {UNPACKED_MAX:,} bytes unpacked; build the wheel in release mode", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
