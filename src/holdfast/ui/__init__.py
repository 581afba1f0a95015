"""The page that shows a running job, its JSON, and the metrics for Prometheus, from an HTTP server of the driver.

Files in reading order: `site` (what is served), `server` (HTTP), `pages`, `api` (JSON), `checkpoint_list`,
`prometheus`, `control` (commands from outside), `screen` and `progress_line` (in a terminal), `notebook`.
"""
