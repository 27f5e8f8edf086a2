"""The provider that docs/providers.md shows, run as it stands there: its file is loaded from the page, and so is its test."""

import re
import sys
from types import ModuleType

import pytest
from django.conf import settings

from sessions_app.providers.base import MessageType
from sessions_app.providers.registry import provider_class

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


def test_the_table_of_channels_is_true() -> None:
    cell = r"([^|]+) \|"
    rows = re.findall(rf"^\| {cell} `(\w+)` \| {cell} {cell} {cell} [^|]+ \| {cell} {cell} (yes|no) \|$", PAGE.read_text(), re.MULTILINE)
    rows = [[value.strip() for value in row] for row in rows]
    assert [key for _, key, *_ in rows] == [key for key in settings.CHANNELS if key != TestAcme.provider.key]
    for label, key, types, length, limit, lookup, receipts, replies in rows:
        channel = provider_class(key)
        assert label == channel.label
        declared = {kind.value.lower() for kind in channel.message_types}
        assert types == "all" if channel.message_types == frozenset(MessageType) else set(types.split(", ")) == declared
        assert length == str(channel.max_text_length or "-")
        assert limit == ("human pace" if channel.pacing is None else f"{channel.pacing.rate:g}/s at most")
        assert lookup.startswith("yes") == channel.can_verify and ("is proof" in lookup) == channel.absence_is_proof
        assert set(receipts.split(", ")) == ({state.value.lower() for state in channel.receipts} or {"none"})
        assert (replies == "yes") == channel.takes_replies
