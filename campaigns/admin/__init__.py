from campaigns.admin.campaign import CampaignAdmin
from campaigns.admin.recipient import RecipientAdmin

__all__ = ["CampaignAdmin", "RecipientAdmin"]
