"""Why a job hangs: which rank stands at which collective, and what the others wait for."""
