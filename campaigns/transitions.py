"""Every way a campaign or a step changes status. Nothing else writes Campaign.status or CampaignStep.status."""
