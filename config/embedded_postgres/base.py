"""Where Django looks for the backend's DatabaseWrapper."""

from pathlib import Path
from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql import base

from config.embedded_postgres import server


class DatabaseWrapper(base.DatabaseWrapper):
    @property
    def data(self) -> Path:
        return Path(self.settings_dict["DATA_DIRECTORY"]).resolve()

    def get_connection_params(self) -> dict[str, Any]:
        # The whole address: PGHOST, PGPORT and PGUSER in the environment are for other servers.
        address = {"host": str(server.socket_folder(self.data)), "port": server.PORT, "user": server.role()}
        return super().get_connection_params() | address

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Starts the server if it does not run. What keeps it from running is an OperationalError, as with any database that is away."""
        try:
            server.start(self.data)
        except server.NotUsable as error:
            raise ImproperlyConfigured(str(error)) from error
        except server.ServerError as error:
            raise psycopg.OperationalError(str(error)) from error
        return super().get_new_connection(conn_params)
