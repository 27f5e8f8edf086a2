"""Two more schedules of the q-cluster. As with the others: whoever changes or removes one in the admin keeps that."""

from django.db import migrations

SCHEDULES = [
    ("paceline: retry campaigns", "dispatch.tasks.retry_campaigns", "I", 5),
    ("paceline: watch", "dispatch.tasks.watch", "I", 1),
]


def make(apps, schema_editor):
    Schedule = apps.get_model("django_q", "Schedule")
    for name, func, kind, minutes in SCHEDULES:
        Schedule.objects.get_or_create(name=name, defaults={"func": func, "schedule_type": kind, "minutes": minutes})


def remove(apps, schema_editor):
    apps.get_model("django_q", "Schedule").objects.filter(name__in=[name for name, *_ in SCHEDULES]).delete()


class Migration(migrations.Migration):
    dependencies = [("dispatch", "0004_jobs_alerts_webhooks_and_retries"), ("django_q", "0019_alter_task_options_alter_ormq_key_alter_ormq_lock_and_more")]
    operations = [migrations.RunPython(make, remove)]
