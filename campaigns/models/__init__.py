from campaigns.models.campaign import Campaign
from campaigns.models.recipient import Recipient
from campaigns.models.step import CampaignStep
from campaigns.models.upload import UploadedFile

__all__ = ["Campaign", "CampaignStep", "Recipient", "UploadedFile"]
