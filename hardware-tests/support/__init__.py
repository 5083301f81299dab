"""What the hardware tests share: packers, cases, float64 measures, timing. Nothing of the product computes here."""
