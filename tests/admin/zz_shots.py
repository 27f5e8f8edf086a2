from datetime import timedelta
import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from campaigns.models import Campaign
from dispatch.models import DispatchLog, Heartbeat, Attempt
from tests.factories import *
from django.urls import reverse

def test_shots(page, tmp_path):
    User.objects.create_superuser("admin", password="admin")
    S = Campaign.Status
    waha = make_session(name="Sales Brazil", channel="waha", time_zone="America/Sao_Paulo", daily_limit=500, settings={"base_url": "http://127.0.0.1:3000", "session": "default", "engine": "NOWEB"}, credentials={"api_key": "sekret"})
    away = make_session(name="Support", channel="waha", status="NEEDS_PAIRING", status_detail="Scan the QR code on the phone: the session was logged out by the phone at 10:31.")
    old = make_session(name="Old one", channel="pigeon", status="DISCONNECTED")
    c = make_campaign(name="June newsletter", tenant="Bakery Lua", session=waha, status=S.RUNNING, status_reason="started by admin", time_zone="America/Sao_Paulo")
    st = make_step(c, name="Invitation", text="Hello {{ name }}, the bakery is open again.")
    make_step(c, name="Reminder", text="Hi {{ name|default:\"there\" }}!", delay_after_previous=timedelta(days=2))
    run = make_run(st)
    for i in range(20):
        make_log(run, status=["SENT","SENT","SENT","FAILED","UNCONFIRMED","PENDING"][i%6], **({"error_code":"INVALID_RECIPIENT","error_text":"no such number"} if i%6==3 else {}))
    u = DispatchLog.objects.filter(status="UNCONFIRMED").first()
    Attempt.objects.create(log=u, attempt=1, token=1, session=waha, outcome="UNCONFIRMED", detail="read timed out after 20 s")
    make_lane(waha, campaign=c, next_send_at=timezone.now()+timedelta(seconds=40))
    p = make_campaign(name="Autumn offer", tenant="Shoes", session=away, status=S.PAUSED, status_reason="5 failures in a row; last: the number is not on WhatsApp. Look at the list before you resume.")
    d = make_campaign(name="Draft with problems", session=make_session(name="Dry", channel="mock"), min_interval=3, batch_size=50)
    make_step(d, text="Hello {{ name }} of {{ city }}")
    make_recipients(3, d)
    make_campaign(name="Tomorrow", status=S.SCHEDULED, due_at=timezone.now()+timedelta(days=1), session=waha)
    make_campaign(name="Done", status=S.COMPLETED)
    make_campaign(name="Stopped one", status=S.FAILED, status_reason="stopped by ana")
    Heartbeat.objects.create(kind="SCHEDULER", host="web1", host_identity="x", pid=10, version="0.1", interval=timedelta(seconds=30))
    def shot(name, url=None, full=True):
        if url: page.goto(url)
        page.wait_for_load_state("networkidle")
        page.screenshot(path=f"/tmp/shots/{name}.png", full_page=full)
    shot("login", "/admin/")
    page.fill("#id_username", "admin"); page.fill("#id_password", "admin"); page.click("button[type=submit]")
    pages = {"dash": "/admin/", "list": "/admin/campaigns/campaign/", "detail": f"/admin/campaigns/campaign/{c.pk}/change/", "draft": f"/admin/campaigns/campaign/{d.pk}/change/",
      "add": "/admin/campaigns/campaign/add/", "import": f"/admin/campaigns/campaign/{d.pk}/import/", "logs": "/admin/dispatch/dispatchlog/", "log": f"/admin/dispatch/dispatchlog/{u.pk}/change/",
      "sessions": "/admin/sessions_app/session/", "session": f"/admin/sessions_app/session/{waha.pk}/change/", "unknown": f"/admin/sessions_app/session/{old.pk}/change/", "addsession": "/admin/sessions_app/session/add/", "recipients": "/admin/campaigns/recipient/",
      "lanes": "/admin/dispatch/lane/", "lane": f"/admin/dispatch/lane/{waha.pk}/change/", "runs": "/admin/dispatch/run/", "run": f"/admin/dispatch/run/{run.pk}/change/", "users": "/admin/auth/user/", "beats": "/admin/dispatch/heartbeat/"}
    for n, u_ in pages.items(): shot(n, u_)
    page.goto(pages["import"])
    page.set_input_files("input[type=file]", {"name": "a.csv", "mimeType": "text/csv", "buffer": b"phone;name;city\n+12025550177;Ana;Recife\n+12025550177;Ana 2;Rome\nabc;Bob;\n+1202555;Eve;X\n"})
    page.click("button[name=_import]"); shot("report")
    page.goto(pages["detail"]); page.click("text=Stop"); page.wait_for_selector("#dialog"); page.wait_for_timeout(400); shot("dialog", full=False)
    page.set_viewport_size({"width": 390, "height": 844})
    for n in ("dash","list","detail","import","logs","session"): shot("m_"+n, pages[n])
