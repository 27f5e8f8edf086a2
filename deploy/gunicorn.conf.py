"""The web process, wherever it runs; what stands on gunicorn's command line goes first."""

bind = "127.0.0.1:8000"
workers = 2
threads = 4
graceful_timeout = 30  # for requests that are under way at a stop; the unit and the container give it 40 s
control_socket_disable = True
# With --access-logfile -: the path and never the query, where a hosted cron's token may stand.
access_log_format = '%(h)s %(t)s "%(m)s %(U)s" %(s)s %(B)s %(M)sms'
