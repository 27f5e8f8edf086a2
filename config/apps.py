from django.apps import AppConfig
from django.core.checks import register

from config.checks import unread_settings


class ConfigConfig(AppConfig):
    name = "config"

    def ready(self) -> None:
        register(unread_settings)
