"""Made-up streams of orders, payments and shipments: rows that depend on a seed and a row's number alone."""
