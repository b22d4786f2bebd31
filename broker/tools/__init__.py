"""`penstock log`: log folders read and repaired without a broker."""
