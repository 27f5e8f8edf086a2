TYPES = ("daily", "every_3d", "every_7d", "every_15d", "every_30d", "weekly", "monthly", "yearly", "semi_monthly", "semi_annually")
