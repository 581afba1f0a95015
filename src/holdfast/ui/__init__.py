"""The page that shows a running job, its JSON, and the metrics for Prometheus, from an HTTP server of the driver."""
