"""Accounts and background tasks in the admin's own clothes: their packages register them in Django's.

`config` stands after those packages in INSTALLED_APPS, so this is loaded when they have registered.
"""

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as PlainGroupAdmin
from django.contrib.auth.admin import UserAdmin as PlainUserAdmin
from django.contrib.auth.models import Group, User
from django_q import admin as plain
from django_q.conf import Conf
from django_q.models import Failure, OrmQ, Schedule, Success
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

admin.site.index_title = "Overview"
for model in (User, Group, Schedule, Success, Failure, OrmQ):
    if admin.site.is_registered(model):
        admin.site.unregister(model)


@admin.register(User)
class UserAdmin(PlainUserAdmin, ModelAdmin):
    form, add_form, change_password_form = UserChangeForm, UserCreationForm, AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(PlainGroupAdmin, ModelAdmin):
    pass


@admin.register(Schedule)
class ScheduleAdmin(plain.ScheduleAdmin, ModelAdmin):
    pass


@admin.register(Success)
class SuccessAdmin(plain.TaskAdmin, ModelAdmin):
    pass


@admin.register(Failure)
class FailureAdmin(plain.FailAdmin, ModelAdmin):
    pass


if Conf.ORM:  # with another broker there is no table to look at

    @admin.register(OrmQ)
    class QueueAdmin(plain.QueueAdmin, ModelAdmin):
        pass
