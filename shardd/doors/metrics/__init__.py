"""The door for metrics: probes, and the figures of the server as Prometheus reads them (docs/operating.md#metrics)."""
