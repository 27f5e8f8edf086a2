"""What machines call. Each address works with and without a slash at its end: a redirect would lose the body of a POST."""

from django.urls import path, re_path

from dispatch.views import health, jobs, webhooks

urlpatterns = [
    re_path(r"^api/jobs/campaign-retry/?$", jobs.campaign_retry, name="campaign-retry"),
    re_path(r"^api/jobs/scheduler/?$", jobs.scheduler, name="scheduler-job"),
    re_path(r"^api/health/?$", health.health, name="health"),
    re_path(r"^health/scheduler/?$", health.scheduler_health, name="scheduler-health"),
    re_path(r"^metrics/?$", health.metrics, name="metrics"),
    path("api/webhooks/<uuid:session_uuid>/", webhooks.receive, name="webhook"),
    path("api/webhooks/<uuid:session_uuid>", webhooks.receive),
]
