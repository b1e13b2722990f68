"""What the daemon serves: health, metrics, settings, and the admission webhooks, over HTTPS.

`server` and `webhooks` are the two servers. What they are made of stands beside them: whom they
trust and ask, what is healthy, which certificates they show. `ccm.serving` is the ground they
stand on; here it meets flags and the API server.
"""
