"""The q-cluster's schedules. Whoever changes or removes one in the admin keeps that: they are made once, here."""

from django.db import migrations

SCHEDULES = [
    ("paceline: recover", "dispatch.tasks.recover", "I", 5),
    ("paceline: drive the engine", "dispatch.tasks.drive", "I", 1),
    ("paceline: keep house", "dispatch.tasks.keep_house", "D", None),
]


def make(apps, schema_editor):
    Schedule = apps.get_model("django_q", "Schedule")
    for name, func, kind, minutes in SCHEDULES:
        Schedule.objects.get_or_create(name=name, defaults={"func": func, "schedule_type": kind, "minutes": minutes})


def remove(apps, schema_editor):
    apps.get_model("django_q", "Schedule").objects.filter(name__in=[name for name, *_ in SCHEDULES]).delete()


class Migration(migrations.Migration):
    dependencies = [("dispatch", "0001_initial"), ("django_q", "0019_alter_task_options_alter_ormq_key_alter_ormq_lock_and_more")]
    operations = [migrations.RunPython(make, remove)]
