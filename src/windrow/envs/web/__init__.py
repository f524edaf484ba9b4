"""The web: real browsers, many at a time. Needs the extra `web` and a Chromium."""
