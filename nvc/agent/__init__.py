"""The long-lived side: guards, scheduler, control socket. Nothing that runs for every container imports it."""
