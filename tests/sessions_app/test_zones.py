"""Zones of sessions, campaigns and steps: names that everybody means the same by."""

import pytest
from django.core.exceptions import ValidationError

from sessions_app.models import validate_time_zone


@pytest.mark.parametrize("name", ["UTC", "America/Sao_Paulo", "Europe/Lisbon", "Etc/GMT+3"])
def test_zones_that_are_known(name):
    validate_time_zone(name)


@pytest.mark.parametrize("name", ["localtime", "Factory", "Mars/Base", "", "../etc/passwd", "america/sao_paulo ", "BRT-3"])
def test_what_is_no_zone_is_refused_with_a_sentence(name):
    with pytest.raises(ValidationError, match="is not a time zone"):
        validate_time_zone(name)
