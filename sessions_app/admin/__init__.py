from sessions_app.admin.session import SessionAdmin
from sessions_app.admin.showing import SHOWN_OF_A_REASON, STATUS_COLOURS, back_to, badge

__all__ = ["SHOWN_OF_A_REASON", "STATUS_COLOURS", "SessionAdmin", "back_to", "badge"]
