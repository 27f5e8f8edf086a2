from django.apps import AppConfig
from django.core.checks import register

from dispatch.checks import TAG, operations


class DispatchConfig(AppConfig):
    name = "dispatch"
    verbose_name = "Dispatch"

    def ready(self) -> None:
        register(operations, TAG, deploy=True)
