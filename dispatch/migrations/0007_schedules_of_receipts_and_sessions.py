"""The schedules of receipts, replies and sessions. As with the others: whoever changes or removes one in the admin keeps that."""

from django.db import migrations

SCHEDULES = [
    ("paceline: apply webhooks", "dispatch.tasks.apply_webhooks", "I", 1),
    ("paceline: find silence", "dispatch.tasks.find_silence", "I", 1),
    ("paceline: poll sessions", "dispatch.tasks.poll_sessions", "I", 5),
    ("paceline: sync templates", "dispatch.tasks.sync_templates", "D", None),
]


def make(apps, schema_editor):
    Schedule = apps.get_model("django_q", "Schedule")
    for name, func, kind, minutes in SCHEDULES:
        Schedule.objects.get_or_create(name=name, defaults={"func": func, "schedule_type": kind, "minutes": minutes})


def remove(apps, schema_editor):
    apps.get_model("django_q", "Schedule").objects.filter(name__in=[name for name, *_ in SCHEDULES]).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("dispatch", "0006_receipts_replies_and_known_addresses"),
        ("django_q", "0019_alter_task_options_alter_ormq_key_alter_ormq_lock_and_more"),
    ]
    operations = [migrations.RunPython(make, remove)]
