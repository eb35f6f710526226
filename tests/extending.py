"""The code of docs/development/extending.md, as modules that tests can run."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

_PAGE = Path(__file__).parents[1] / "docs" / "development" / "extending.md"


def module_of(section: str, file: Path) -> ModuleType:
    """Write the first block of code of a section to a file, and import it."""
    code = re.search(r"```python\n(.*?)```", _PAGE.read_text().partition(f"## {section}")[2], re.DOTALL)
    assert code is not None
    file.write_text(code[1])
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
