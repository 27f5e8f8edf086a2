from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture
def staff(db) -> Callable[..., Client]:
    """A client of a member of staff with these permissions and no others."""

    def log_in(*permissions: str, name: str = "ana") -> Client:
        user = User.objects.create_user(name, password="x", is_staff=True)
        for permission in permissions:
            app, codename = permission.split(".")
            user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def said() -> Callable[[Any], list[str]]:
    """The sentences that a response left for the next page."""
    return lambda response: [str(message) for message in get_messages(response.wsgi_request)]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium, live_server) -> Iterator[Any]:
    """A page on the live server. What its console complains about fails the test."""
    context = chromium.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    assert complaints == []
