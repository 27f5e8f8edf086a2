"""A file that staff uploaded for a step. It lies in the database: every process and host has it, and a backup does."""

import secrets
from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models.functions import Cast
from django.urls import reverse

from campaigns.models.step import CampaignStep


def new_token() -> str:
    """192 random bits: whoever knows the address may fetch the file, as the channel must."""
    return secrets.token_urlsafe(24)


class UploadedFileQuerySet(models.QuerySet["UploadedFile"]):
    def named_by_no_step(self, before: datetime) -> "UploadedFileQuerySet":
        """Uploaded before then, and no step has its address any more, not even in components that were written by hand."""
        steps = CampaignStep.objects.annotate(components=Cast("template_components", models.TextField()))
        token = models.OuterRef("token")
        naming = steps.filter(models.Q(media_url__contains=token) | models.Q(components__contains=token))
        return self.filter(~models.Exists(naming), created_at__lt=before)


class UploadedFile(models.Model):
    token = models.CharField(max_length=43, unique=True, default=new_token, editable=False)
    name = models.CharField(max_length=150)
    content_type = models.CharField(max_length=100)
    content = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)

    objects = UploadedFileQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name

    @property
    def url(self) -> str:
        """Where channels fetch it. Its end is its name, because some of them show that."""
        return settings.PUBLIC_URL + reverse("uploaded-file", args=[self.token, self.name])
