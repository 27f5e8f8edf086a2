from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from campaigns.views import uploaded_file

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("", include("dispatch.urls")),
    path("files/<str:token>/<str:name>", uploaded_file, name="uploaded-file"),
    path("admin/", admin.site.urls),
]
