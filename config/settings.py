"""Everything from the environment; with nothing set, a development instance on the embedded PostgreSQL."""

from pathlib import Path

import environ
from django.templatetags.static import static

from config.environment import Environment, new_credentials_key, new_secret_key
from config.navigation import SIDEBAR

VERSION = "0.1.0"  # what a heartbeat names; the same as in pyproject.toml
BASE_DIR = Path(__file__).resolve().parent.parent
VAR = BASE_DIR / "var"
ENV_FILE = BASE_DIR / ".env"
env = Environment(ENV_FILE, VAR)

DEBUG = env["DEBUG"]
SECRET_KEY = env.secret("SECRET_KEY", new_secret_key)
CREDENTIALS_KEYS = env.secret("CREDENTIALS_KEYS", new_credentials_key)
ALLOWED_HOSTS = env["ALLOWED_HOSTS"] or ["localhost", "127.0.0.1", "[::1]"]
CSRF_TRUSTED_ORIGINS = env["CSRF_TRUSTED_ORIGINS"]

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "unfold.contrib.inlines",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_q",
    "config",
    "sessions_app",
    "campaigns",
    "dispatch",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# Nothing starts here: the embedded server starts at the first connection, so that checks, mypy and collectstatic never start it.
if env["DATABASE_URL"]:
    DATABASES = {"default": env.parsed("DATABASE_URL", environ.Env.db_url_config)}
    # A connection that died without a word is noticed in seconds, not when TCP gives up after a quarter of an hour.
    patience = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15000}
    DATABASES["default"]["OPTIONS"] = patience | DATABASES["default"].get("OPTIONS", {})
else:
    DATABASES = {
        "default": {
            "ENGINE": "config.embedded_postgres",
            "NAME": "postgres",
            "DATA_DIRECTORY": VAR / "postgres",
        }
    }
DATABASES["default"] |= {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True, "DISABLE_SERVER_SIDE_CURSORS": True}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]

LOGIN_URL = "admin:login"
LOGIN_REDIRECT_URL = "admin:index"

LANGUAGE_CODE = env["LANGUAGE_CODE"]
TIME_ZONE = env["TIME_ZONE"]
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}

if not DEBUG:
    SECURE_SSL_REDIRECT = env["SECURE_SSL_REDIRECT"]
    SECURE_HSTS_SECONDS = 3600 * 24 * 30
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]  # subdomains and the preload list are for the owner of the domain
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_AGE = 3600 * 8

if env["EMAIL_URL"]:
    vars().update(env.parsed("EMAIL_URL", environ.Env.email_url_config))
else:
    EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"

Q_CLUSTER = {
    "name": "paceline",
    "workers": 2,
    "timeout": 600,
    "retry": 720,  # longer than the timeout, or a slow task is handed out twice
    "max_attempts": 1,
    "poll": 1,
    "catch_up": False,  # after an outage a schedule runs once, not once for each time that was missed
    "label": "Background tasks",
    "log_level": "WARNING",  # a task that finds nothing to do is no news
} | ({"redis": env["REDIS_URL"]} if env["REDIS_URL"] else {"orm": "default"})

# Sending. DESIGN: pacing lives in the database, these are the only knobs.
DEFAULT_REGION = env["DEFAULT_REGION"]
SCHEDULE_GRACE_SECONDS = env["SCHEDULE_GRACE_SECONDS"]
SEND_DEADLINE_SECONDS = env["SEND_DEADLINE_SECONDS"]
RECOVERY_POLICY = env["RECOVERY_POLICY"]
ENGINE_DRIVER = env["ENGINE_DRIVER"]
# The jobs that an operator's cron may call, what watches, and who is told.
CAMPAIGN_RETRY_JOB_TOKEN = env["CAMPAIGN_RETRY_JOB_TOKEN"]
CAMPAIGN_RETRY_JOB_URL = env["CAMPAIGN_RETRY_JOB_URL"]
CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN = env["CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN"]
CAMPAIGN_RETRY_BATCH_SIZE = env["CAMPAIGN_RETRY_BATCH_SIZE"]
CAMPAIGN_RETRY_MAX_CAMPAIGNS = env["CAMPAIGN_RETRY_MAX_CAMPAIGNS"]
CAMPAIGN_RETRY_JOB_LOCK_TTL_SECONDS = env["CAMPAIGN_RETRY_JOB_LOCK_TTL_SECONDS"]
CAMPAIGN_RETRY_DAEMON_INTERVAL_SECONDS = env["CAMPAIGN_RETRY_DAEMON_INTERVAL_SECONDS"]
CAMPAIGN_RETRY_DAEMON_TIMEOUT_MS = env["CAMPAIGN_RETRY_DAEMON_TIMEOUT_MS"]
CAMPAIGN_RETRY_TENANT_ID = env["CAMPAIGN_RETRY_TENANT_ID"]
CAMPAIGN_RETRY_CAMPAIGN_ID = env["CAMPAIGN_RETRY_CAMPAIGN_ID"]
CAMPAIGN_RETRY_ALERT_WEBHOOK_URL = env["CAMPAIGN_RETRY_ALERT_WEBHOOK_URL"]
CAMPAIGN_RETRY_ALERT_ON_FAILURE = env["CAMPAIGN_RETRY_ALERT_ON_FAILURE"]
ALERT_URLS = env["ALERT_URLS"]
HEALTHCHECK_TOKEN = env["HEALTHCHECK_TOKEN"]
RETRY_WORKER_STALE_MINUTES = env["RETRY_WORKER_STALE_MINUTES"]
WEBHOOK_FAILURE_RATE_THRESHOLD_PER_HOUR = env["WEBHOOK_FAILURE_RATE_THRESHOLD_PER_HOUR"]
OPS_BASE_URL = env["OPS_BASE_URL"]
PUBLIC_URL = (env["PUBLIC_URL"] or OPS_BASE_URL).rstrip("/")  # where providers reach us with receipts and replies
WAHA_API_URL = env["WAHA_API_URL"]
WAHA_API_KEY = env["WAHA_API_KEY"]

# A channel is one file: its key, and where its provider is. Adding one needs no migration.
CHANNELS = {
    "waha": "sessions_app.providers.waha.WahaProvider",
    "whatsapp_cloud": "sessions_app.providers.whatsapp_cloud.WhatsAppCloudProvider",
    "twilio": "sessions_app.providers.twilio.TwilioProvider",
    "telegram": "sessions_app.providers.telegram.TelegramProvider",
    "slack": "sessions_app.providers.slack.SlackProvider",
    "webhook": "sessions_app.providers.webhook.WebhookProvider",
    "smsdev": "sessions_app.providers.smsdev.SMSDevProvider",
    "email": "sessions_app.providers.email.EmailProvider",
    "apprise": "sessions_app.providers.apprise.AppriseProvider",
    "internal_queue": "sessions_app.providers.internal_queue.InternalQueueProvider",
    "sandbox": "sessions_app.providers.sandbox.SandboxProvider",
    "mock": "sessions_app.providers.mock.MockProvider",
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"facts": {"()": "config.logs.FactsFormatter"}},
    "filters": {"no tokens": {"()": "config.redaction.NoTokens"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "facts"}},
    "loggers": {
        "paceline": {"handlers": ["console"], "level": env["LOG_LEVEL"]},
        "django": {"handlers": ["console"], "level": "INFO", "propagate": False},
        "django.server": {"handlers": ["console"], "filters": ["no tokens"], "level": "INFO", "propagate": False},
    },
}

if env["SENTRY_DSN"]:
    import sentry_sdk

    from config.redaction import without_tokens

    sentry_sdk.init(
        dsn=env["SENTRY_DSN"],
        send_default_pii=False,
        include_local_variables=False,
        before_send=without_tokens,
        before_send_transaction=without_tokens,
        # the path of a look-up at a provider carries the address of a person
        before_breadcrumb=lambda crumb, hint: None if crumb.get("category") == "httplib" else crumb,
    )

UNFOLD = {
    "SITE_TITLE": "Paceline",
    "SITE_HEADER": "Paceline",
    "SITE_SUBHEADER": "One careful human",
    "SITE_SYMBOL": "directions_run",
    "SITE_URL": None,  # there is no other site to return to
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("config/favicon.svg")}],
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "SHOW_BACK_BUTTON": True,
    "DASHBOARD_CALLBACK": "config.dashboard.fill",
    "SIDEBAR": SIDEBAR,
}
