from pathlib import Path
from django.db.backends.postgresql import base
from . import ensure, socket_dir


class DatabaseWrapper(base.DatabaseWrapper):
    def get_new_connection(self, conn_params):
        ensure(Path(self.settings_dict["DATA_DIRECTORY"]))
        conn_params = dict(conn_params); conn_params['host'] = str(socket_dir(Path(self.settings_dict['DATA_DIRECTORY'])))
        return super().get_new_connection(conn_params)
