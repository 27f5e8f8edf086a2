"""The provider that docs/providers.md shows, run as it stands there: its file is loaded from the page, and so is its test."""

import re
import sys
from types import ModuleType

import pytest
from django.conf import settings

PAGE = settings.BASE_DIR / "docs" / "providers.md"
MODULE = "sessions_app.providers.acme"
provider_source, test_source = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def load(source: str, name: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(source, f"{PAGE.name}: {name}", "exec"), module.__dict__)
    return module


def load_test() -> type:
    sys.modules[MODULE] = load(provider_source, MODULE)
    try:
        return load(test_source, __name__).TestAcme
    finally:
        del sys.modules[MODULE]


TestAcme = load_test()


@pytest.fixture(autouse=True)
def registered(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TestAcme.provider
    module = ModuleType(MODULE)
    module.AcmeProvider = provider
    monkeypatch.setitem(sys.modules, MODULE, module)
    settings.CHANNELS = {**settings.CHANNELS, provider.key: f"{MODULE}.{provider.__name__}"}


def test_the_page_tells_its_reader_to_write_the_line_that_was_tried_here() -> None:
    assert f'"{TestAcme.provider.key}": "{MODULE}.{TestAcme.provider.__name__}",' in PAGE.read_text()
