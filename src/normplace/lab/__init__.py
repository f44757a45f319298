"""The lab: studies made of trials, results that survive a crash, and verdicts computed from them."""
