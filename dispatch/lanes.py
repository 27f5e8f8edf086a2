"""Claim, settle and recover: one statement each for many lanes, human and metered alike. The only raw SQL of the project.

What holds, and is checked by `tests/dispatch/test_lanes.py`:

* in_flight is the number of SENDING rows of a lane, and never above its burst; an owner is set exactly while a lease is.
* An expired lease can be claimed by nobody, its owner included, until `recover` has made its rows UNCONFIRMED.
* The claim never waits for a lock. Settle and recover wait for short ones only, in the order run, lane, log, ids ascending.
* next_send_at outlives a shut lane, so a cool-down outlives pause and resume.

Every comparison is on the database's clock; `now` replaces it in tests. statement_timestamp(), because clock_timestamp() is volatile and no
index would serve it. Batches stay small (64 lanes), or the planner leaves the primary keys.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import DataError, connection

from dispatch.outcomes import RETRY_AFTER, LaneEffect
from sessions_app.pacing import MAX_FAILURES_IN_A_ROW, MAX_INVALID_IN_A_ROW

MOST_LANES_IN_ONE_STATEMENT = 64
NOW = "coalesce(%(now)s::timestamptz, statement_timestamp())"

# The due lanes are picked and locked first; `FOR SHARE` on campaign and session makes a pause that commits meanwhile seen. Rows are picked
# in order and locked after (locking inside the pick would take the second row when the head is locked), and their status is re-checked
# under the lock. A human lane is pushed past the lease and its longest wait: a worker that dies cannot shorten a gap; the settle brings it
# forward.
CLAIM = f"""
WITH due AS MATERIALIZED (
  SELECT l.session_id, l.campaign_id, l.token + 1 AS token, l.rate, l.consecutive_rate_limits, c.epoch, n.want,
         c.min_interval, c.max_interval, c.batch_size, c.batch_pause, s.updated_at AS session_version,
         CASE WHEN l.epoch = c.epoch THEN l.attempts_in_run ELSE 0 END AS in_run, l.next_send_at,
         l.epoch = c.epoch AND (s.daily_limit IS NULL OR l.day = ({NOW} AT TIME ZONE s.time_zone)::date) AS was_at_work,
         ({NOW} AT TIME ZONE s.time_zone)::date AS today
  FROM dispatch_lane l
  JOIN sessions_app_session s ON s.id = l.session_id
  JOIN campaigns_campaign c ON c.id = l.campaign_id AND c.session_id = l.session_id
  CROSS JOIN LATERAL (SELECT least(
      l.burst - l.in_flight,
      CASE WHEN l.rate IS NULL THEN 1
           ELSE least(floor(extract(epoch FROM {NOW} - l.next_send_at) * l.rate), 1000000)::int + 1 END,
      s.daily_limit - CASE WHEN l.day = ({NOW} AT TIME ZONE s.time_zone)::date THEN l.day_count ELSE 0 END,
      %(rows)s) AS want) n
  WHERE l.is_open AND l.next_send_at <= {NOW}
    AND (l.open_until IS NULL OR l.open_until > {NOW})
    AND l.trouble = ''
    AND (l.owner IS NULL OR (l.owner = %(owner)s AND l.rate IS NOT NULL AND l.lease_expires_at > {NOW}))
    AND l.origin <> ALL (%(full_origins)s)
    AND s.status = 'CONNECTED' AND c.status = 'RUNNING' AND n.want > 0
  ORDER BY l.next_send_at
  LIMIT %(lanes)s
  FOR NO KEY UPDATE OF l SKIP LOCKED FOR SHARE OF c, s SKIP LOCKED
), head AS MATERIALIZED (
  SELECT d.*, g.id AS log_id, g.available_at
  FROM due d
  CROSS JOIN LATERAL (
    SELECT p.id FROM dispatch_dispatchlog p
    WHERE p.campaign_id = d.campaign_id AND p.status = 'PENDING' AND p.available_at <= {NOW}
      AND (p.recipient_id IS NOT NULL OR p.kind <> 'MESSAGE')
    ORDER BY p.available_at, p.id
    LIMIT d.want) pick
  JOIN dispatch_dispatchlog g ON g.id = pick.id AND g.status = 'PENDING'
  FOR NO KEY UPDATE OF g SKIP LOCKED
), leased AS (
  UPDATE dispatch_lane l SET
    token = h.token, owner = %(owner)s, in_flight = l.in_flight + h.n,
    lease_expires_at = {NOW} + %(lease)s,
    attempts_in_run = h.in_run + h.n, attempts_in_batch = l.attempts_in_batch + h.n,
    consecutive_failures = CASE WHEN l.epoch = h.epoch THEN l.consecutive_failures ELSE 0 END,
    consecutive_invalid = CASE WHEN l.epoch = h.epoch THEN l.consecutive_invalid ELSE 0 END,
    epoch = h.epoch, day = h.today, day_count = CASE WHEN l.day = h.today THEN l.day_count ELSE 0 END + h.n,
    next_send_at = CASE WHEN l.rate IS NULL
      THEN {NOW} + %(lease)s + l.longest_wait
      ELSE greatest(l.next_send_at, {NOW} - make_interval(secs => (l.burst - 1) / l.rate)) + make_interval(secs => h.n / l.rate) END
  FROM (SELECT session_id, token, in_run, today, epoch, count(*)::int AS n FROM head GROUP BY 1, 2, 3, 4, 5) h
  WHERE l.session_id = h.session_id AND l.session_id = ANY (ARRAY (SELECT session_id FROM head))
  RETURNING l.session_id, l.attempts_in_run, l.attempts_in_batch
), parked AS (
  UPDATE dispatch_lane l SET is_open = false
  FROM due d WHERE l.session_id = d.session_id AND l.in_flight = 0
    AND NOT EXISTS (SELECT FROM head h WHERE h.session_id = d.session_id)
    AND NOT EXISTS (SELECT FROM dispatch_dispatchlog p
                    WHERE p.campaign_id = d.campaign_id AND p.status = 'PENDING' AND p.available_at <= {NOW})
), sending AS (
  UPDATE dispatch_dispatchlog g SET
    status = 'SENDING', reason = '', attempt = g.attempt + 1, token = h.token, session_id = h.session_id, claimed_at = {NOW}
  FROM head h
  WHERE g.id = h.log_id AND g.id = ANY (ARRAY (SELECT log_id FROM head))
  RETURNING g.id, g.attempt, g.token, g.session_id, g.campaign_id, g.run_id, g.recipient_id, g.address, g.client_ref, g.body, g.claimed_at,
            h.rate, h.consecutive_rate_limits, h.min_interval, h.max_interval, h.batch_size, h.batch_pause, h.session_version,
            CASE WHEN h.was_at_work THEN {NOW} - greatest(h.next_send_at, h.available_at) ELSE interval '0' END AS late
)
SELECT x.id, x.attempt, x.token, x.session_id, x.campaign_id, x.run_id, x.recipient_id, x.address, x.client_ref, x.body, x.claimed_at,
       x.rate, x.consecutive_rate_limits, x.min_interval, x.max_interval, x.batch_size, x.batch_pause, x.session_version, x.late,
       l.attempts_in_run, l.attempts_in_batch, coalesce(r.name, '') AS name, coalesce(r.metadata, '{{}}') AS metadata
FROM sending x JOIN leased l USING (session_id)
LEFT JOIN LATERAL (SELECT name, metadata FROM campaigns_recipient WHERE id = x.recipient_id OFFSET 0) r ON true
ORDER BY x.id
"""

# What the claim computes of a single lane; and the end of one with which it cannot be computed.
PROBE = f"""
SELECT ({NOW} AT TIME ZONE s.time_zone)::date, extract(epoch FROM {NOW} - l.next_send_at) * l.rate,
       make_interval(secs => l.burst / l.rate)
FROM dispatch_lane l JOIN sessions_app_session s ON s.id = l.session_id WHERE l.session_id = %(session)s
"""
SHUT = """
UPDATE dispatch_lane l SET is_open = false, trouble = %(trouble)s, trouble_code = 'MISCONFIGURED', epoch = c.epoch, attempts_in_run = 0
FROM campaigns_campaign c WHERE c.id = l.campaign_id AND l.session_id = %(session)s
RETURNING l.session_id
"""

# One array element an answer; p_* one element a lane. The guard: this attempt, this token, and either still undecided or proof of
# acceptance. A row that comes back to PENDING reopens its run, so that a run that is not RUNNING never has anything left to send.
# Counters are taken as they stand under the lock (x): the snapshot's may be older than a recovery or an operator that was waited for, and
# PostgreSQL tests a CHECK on the row as drafted from the snapshot, before it notices that there is a newer version.
SETTLE = f"""
WITH answer AS MATERIALIZED (
  SELECT * FROM unnest(%(log)s::bigint[], %(attempt)s::int[], %(token)s::bigint[], %(session)s::bigint[], %(verdict)s::text[],
                       %(code)s::text[], %(message_id)s::text[], %(error)s::text[], %(http)s::int[], %(body)s::text[],
                       %(defer)s::interval[])
    AS a(log_id, attempt, token, session_id, verdict, code, message_id, error, http, body, defer)
), run AS MATERIALIZED (
  SELECT r.id, r.sent, r.failed, r.unconfirmed, r.skipped FROM dispatch_run r
  WHERE r.id = ANY (%(runs)s::bigint[]) ORDER BY r.id FOR NO KEY UPDATE
), lane AS MATERIALIZED (
  SELECT l.session_id, l.consecutive_failures, l.consecutive_invalid, l.consecutive_rate_limits, s.time_zone, p.*
  FROM unnest(%(p_session)s::bigint[], %(p_wait)s::interval[], %(p_ends_batch)s::bool[], %(p_ends_streaks)s::bool[], %(p_failures)s::int[],
              %(p_invalid)s::int[], %(p_ends_rate_limits)s::bool[], %(p_rate_limits)s::int[], %(p_unsent)s::int[],
              %(p_last_error)s::text[], %(p_trouble)s::text[], %(p_trouble_code)s::text[])
    AS p(lane_id, wait, ends_batch, ends_streaks, failures, invalid, ends_rate_limits, rate_limits, unsent,
         last_error, trouble, trouble_code)
  JOIN dispatch_lane l ON l.session_id = p.lane_id AND l.session_id = ANY (%(p_session)s::bigint[])
  JOIN sessions_app_session s ON s.id = l.session_id
  WHERE (SELECT count(*) FROM run) >= 0
  ORDER BY l.session_id FOR NO KEY UPDATE OF l
), was AS MATERIALIZED (
  SELECT g.id, g.status AS old, g.run_id, g.claimed_at, a.*
  FROM answer a JOIN dispatch_dispatchlog g ON g.id = a.log_id AND g.id = ANY (%(log)s::bigint[])
  WHERE (SELECT count(*) FROM lane) >= 0
    AND g.attempt = a.attempt AND g.token = a.token
    AND (g.status IN ('SENDING', 'UNCONFIRMED') OR (a.verdict = 'SENT' AND g.status IN ('PENDING', 'FAILED', 'SKIPPED')))
  ORDER BY g.id FOR NO KEY UPDATE OF g
), settled AS (
  UPDATE dispatch_dispatchlog g SET
    status = w.verdict, body = coalesce(w.body, g.body), reason = '',
    available_at = CASE WHEN w.defer IS NULL THEN g.available_at ELSE {NOW} + w.defer END,
    error_code = CASE WHEN w.verdict = 'SENT' OR w.code IN ('UNSENT', 'CHECKED') THEN '' ELSE w.code END,
    error_text = w.error, http_status = w.http,
    provider_message_id = CASE WHEN w.message_id = '' THEN g.provider_message_id ELSE w.message_id END,
    sent_at = CASE WHEN w.verdict = 'SENT' THEN {NOW} END,
    unconfirmed_at = CASE WHEN w.verdict = 'UNCONFIRMED' THEN coalesce(g.unconfirmed_at, {NOW}) END,
    verify_at = CASE WHEN w.verdict = 'UNCONFIRMED' THEN coalesce(g.verify_at, {NOW} + %(verify_after)s) END,
    transients = g.transients + CASE WHEN w.code = 'TRANSIENT' THEN 1 ELSE 0 END,
    retry_at = CASE WHEN w.code = 'TRANSIENT' THEN {NOW} + (%(retry_after)s::interval[])[g.transients + 1] END
  FROM was w WHERE g.id = w.id AND g.id = ANY (%(log)s::bigint[])
  RETURNING g.id
), tried AS (
  INSERT INTO dispatch_attempt (log_id, attempt, token, session_id, finished_at, outcome, http_status, detail)
  SELECT a.log_id, a.attempt, a.token, a.session_id, {NOW}, a.code, a.http, a.error
  FROM answer a JOIN dispatch_dispatchlog g ON g.id = a.log_id LEFT JOIN was w ON w.log_id = a.log_id
  WHERE w.id IS NULL OR a.attempt > 1 OR a.verdict <> 'SENT' OR w.old <> 'SENDING'
), counted AS (
  UPDATE dispatch_run r SET
    sent = x.sent + n.sent, failed = x.failed + n.failed, unconfirmed = x.unconfirmed + n.unconfirmed, skipped = x.skipped + n.skipped,
    status = CASE WHEN n.back > 0 THEN 'RUNNING' ELSE r.status END
  FROM (SELECT run_id,
               count(*) FILTER (WHERE verdict = 'SENT') AS sent,
               count(*) FILTER (WHERE verdict = 'FAILED') - count(*) FILTER (WHERE old = 'FAILED') AS failed,
               count(*) FILTER (WHERE verdict = 'UNCONFIRMED') - count(*) FILTER (WHERE old = 'UNCONFIRMED') AS unconfirmed,
               - count(*) FILTER (WHERE old = 'SKIPPED') AS skipped,
               count(*) FILTER (WHERE verdict = 'PENDING') AS back
        FROM was GROUP BY 1) n JOIN run x ON x.id = n.run_id
  WHERE r.id = n.run_id
)
UPDATE dispatch_lane l SET
  in_flight = l.in_flight - t.n,
  owner = CASE WHEN l.in_flight > t.n THEN l.owner END,
  lease_expires_at = CASE WHEN l.in_flight > t.n THEN l.lease_expires_at END,
  attempts_in_run = greatest(l.attempts_in_run - t.unsent, 0),
  attempts_in_batch = CASE WHEN t.ends_batch THEN 0 ELSE greatest(l.attempts_in_batch - t.unsent, 0) END,
  day_count = greatest(l.day_count - (SELECT count(*)::int FROM unnest(t.given_back) b
                                      WHERE (b AT TIME ZONE t.time_zone)::date = l.day), 0),
  consecutive_failures = t.failures, consecutive_invalid = t.invalid, consecutive_rate_limits = t.rate_limits,
  is_open = l.is_open AND t.trouble = '' AND t.failures < {MAX_FAILURES_IN_A_ROW} AND t.invalid < {MAX_INVALID_IN_A_ROW},
  trouble_code = CASE WHEN t.trouble <> '' THEN t.trouble_code ELSE l.trouble_code END,
  trouble = CASE WHEN t.trouble <> '' THEN t.trouble
                 WHEN t.failures >= {MAX_FAILURES_IN_A_ROW} THEN left(t.failures || ' failures in a row; last: ' || t.last_error, 500)
                 WHEN t.invalid >= {MAX_INVALID_IN_A_ROW}
                   THEN left(t.invalid || ' invalid recipients in a row, the list looks wrong; last: ' || t.last_error, 500)
                 ELSE l.trouble END,
  next_send_at = CASE
    WHEN l.rate IS NULL AND t.n > 0 THEN {NOW} + t.wait
    ELSE greatest(l.next_send_at, {NOW} + t.wait) END
FROM (
  SELECT lane.session_id, lane.time_zone, wait, coalesce(m.n, 0) AS n, m.given_back,
         m.n > 0 AND ends_batch AS ends_batch,
         CASE WHEN m.n > 0 THEN unsent ELSE 0 END AS unsent,
         CASE WHEN m.n > 0 THEN trouble ELSE '' END AS trouble, trouble_code, last_error,
         CASE WHEN m.n > 0 THEN failures + CASE WHEN ends_streaks THEN 0 ELSE consecutive_failures END
              ELSE consecutive_failures END AS failures,
         CASE WHEN m.n > 0 THEN invalid + CASE WHEN ends_streaks THEN 0 ELSE consecutive_invalid END
              ELSE consecutive_invalid END AS invalid,
         CASE WHEN m.n > 0 THEN rate_limits + CASE WHEN ends_rate_limits THEN 0 ELSE consecutive_rate_limits END
              ELSE consecutive_rate_limits END AS rate_limits
  FROM lane LEFT JOIN (SELECT session_id, count(*)::int AS n, array_agg(claimed_at) FILTER (WHERE code = 'UNSENT') AS given_back
                         FROM was WHERE old = 'SENDING' GROUP BY 1) m USING (session_id)) t
WHERE l.session_id = t.session_id AND l.session_id = ANY (%(p_session)s::bigint[])
RETURNING l.session_id, l.trouble <> '' AS troubled, (SELECT array_agg(id) FROM settled) AS settled
"""

# The database was away: give its living workers one lease to settle before their rows are taken for lost.
DEAD = f"""owner IS NOT NULL AND (owner = ANY (%(dead_owners)s::uuid[])
  OR (lease_expires_at < {NOW} AND pg_postmaster_start_time() < statement_timestamp() - %(lease)s))"""

RECOVER = f"""
WITH run AS MATERIALIZED (
  SELECT r.id FROM dispatch_run r
  WHERE r.id IN (SELECT g.run_id FROM dispatch_dispatchlog g
                 WHERE g.status = 'SENDING' AND g.session_id IN (SELECT session_id FROM dispatch_lane WHERE {DEAD}))
  ORDER BY r.id FOR NO KEY UPDATE
), dead AS MATERIALIZED (
  SELECT session_id, campaign_id, owner FROM dispatch_lane
  WHERE {DEAD} AND (SELECT count(*) FROM run) >= 0
  ORDER BY session_id FOR NO KEY UPDATE SKIP LOCKED
), lost AS (
  UPDATE dispatch_dispatchlog g SET status = 'UNCONFIRMED', reason = %(reason)s, error_code = 'UNCONFIRMED', error_text = '',
    unconfirmed_at = coalesce(g.unconfirmed_at, {NOW}), verify_at = {NOW} + %(verify_after)s
  FROM dead d WHERE g.session_id = d.session_id AND g.status = 'SENDING'
  RETURNING g.id, g.attempt, g.token, g.session_id, g.campaign_id, g.run_id
), tried AS (
  INSERT INTO dispatch_attempt (log_id, attempt, token, session_id, finished_at, outcome, detail)
  SELECT id, attempt, token, session_id, {NOW}, 'LOST', '' FROM lost
), counted AS (
  UPDATE dispatch_run r SET unconfirmed = r.unconfirmed + n.n
  FROM (SELECT run_id, count(*)::int AS n FROM lost GROUP BY 1) n WHERE r.id = n.run_id
), freed AS (
  UPDATE dispatch_lane l SET owner = NULL, lease_expires_at = NULL, in_flight = 0, is_open = false
  FROM dead d WHERE l.session_id = d.session_id
)
SELECT d.session_id, coalesce(lost.campaign_id, d.campaign_id) AS campaign_id, lost.id AS log_id
FROM dead d LEFT JOIN lost USING (session_id)
ORDER BY 1, 3
"""


OWNED = """
SELECT g.id, g.attempt, g.token, g.session_id, g.campaign_id, g.run_id, g.recipient_id, g.address, g.client_ref, g.body, g.claimed_at,
       l.rate, l.consecutive_rate_limits, c.min_interval, c.max_interval, c.batch_size, c.batch_pause, s.updated_at AS session_version,
       interval '0' AS late, l.attempts_in_run, l.attempts_in_batch, '' AS name, '{}' AS metadata
FROM dispatch_lane l
JOIN dispatch_dispatchlog g ON g.session_id = l.session_id AND g.status = 'SENDING'
JOIN campaigns_campaign c ON c.id = g.campaign_id
JOIN sessions_app_session s ON s.id = l.session_id
WHERE l.owner = %(owner)s
ORDER BY g.id
"""


@dataclass(frozen=True)
class Claimed:
    """One row that is ours to send until the lease ends; the names are the columns of the claim."""

    id: int
    attempt: int
    token: int
    session_id: int
    campaign_id: int
    run_id: int | None
    recipient_id: int | None
    address: str
    client_ref: uuid.UUID
    body: str | None
    claimed_at: datetime
    rate: float | None
    consecutive_rate_limits: int
    min_interval: int
    max_interval: int
    batch_size: int
    batch_pause: int
    session_version: datetime
    late: timedelta  # behind the moment it could have left: the lane's, or its own; what stood still on purpose is not late
    attempts_in_run: int
    attempts_in_batch: int
    name: str
    metadata: dict[str, str]


@dataclass(frozen=True)
class Settlement:
    """One answer, ready to be written."""

    claimed: Claimed
    status: str
    code: str
    message_id: str
    error: str
    http_status: int | None
    body: str | None
    defer: timedelta | None = None  # the row waits this long, and the others do not


class Lost(NamedTuple):
    session_id: int
    campaign_id: int | None
    log_id: int | None  # None: the lane was owned, but nothing was in flight


def _rows(sql: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def claim(
    *, owner: uuid.UUID, lanes: int, rows: int, lease: timedelta, full_origins: Sequence[str] = (), now: datetime | None = None
) -> list[Claimed]:
    """Take the next rows of up to `lanes` due lanes, at most `rows` of each. Committed when this returns: only then may a byte leave."""
    parameters = {"owner": owner, "lanes": lanes, "rows": rows, "lease": lease, "full_origins": list(full_origins), "now": now}
    return [Claimed(**row | {"metadata": _loaded(row["metadata"])}) for row in _rows(CLAIM, parameters)]


def shut_unusable(*, now: datetime | None = None) -> list[int]:
    """The sessions whose lane made a claim fail: with a time zone that PostgreSQL does not know (Python knows others), a rate of zero.

    They get their trouble, so that their campaign is paused and says why. One statement a lane: only for when a claim did fail.
    """
    lanes = [row["session_id"] for row in _rows("SELECT session_id FROM dispatch_lane WHERE is_open AND trouble = ''", {})]
    unusable = []
    for session_id in lanes:
        try:
            _rows(PROBE, {"session": session_id, "now": now})
        except DataError as error:
            unusable.append(session_id)
            _rows(SHUT, {"session": session_id, "trouble": f"the database cannot work with it: {str(error).partition(chr(10))[0]}"[:500]})
    return unusable


def _loaded(metadata: Any) -> dict[str, str]:
    return json.loads(metadata) if isinstance(metadata, str) else metadata  # Django's connection hands jsonb over as text


def owned_by(owner: uuid.UUID) -> list[Claimed]:
    """Everything in flight on the lanes of this owner, as the database has it."""
    return [Claimed(**row | {"metadata": {}}) for row in _rows(OWNED, {"owner": owner})]


def settle(
    settlements: Sequence[Settlement], effects: dict[int, LaneEffect], *, verify_after: timedelta, now: datetime | None = None
) -> tuple[set[int], set[int]]:
    """Write what came back. Returns (the ids of the rows that changed, the sessions whose lane is in trouble). Safe to repeat."""
    lanes = sorted(effects)
    parameters: dict[str, Any] = {
        "log": [s.claimed.id for s in settlements],
        "attempt": [s.claimed.attempt for s in settlements],
        "token": [s.claimed.token for s in settlements],
        "session": [s.claimed.session_id for s in settlements],
        "verdict": [s.status for s in settlements],
        "code": [s.code for s in settlements],
        "message_id": [s.message_id for s in settlements],
        "error": [s.error for s in settlements],
        "http": [s.http_status for s in settlements],
        "body": [s.body for s in settlements],
        "defer": [s.defer for s in settlements],
        "runs": sorted({s.claimed.run_id for s in settlements if s.claimed.run_id is not None}),
        "p_session": lanes,
        "verify_after": verify_after,
        "retry_after": list(RETRY_AFTER),
        "now": now,
    }
    for name in (
        "wait", "ends_batch", "ends_streaks", "failures", "invalid", "ends_rate_limits", "rate_limits", "unsent",
        "last_error", "trouble", "trouble_code",
    ):  # fmt: skip
        parameters[f"p_{name}"] = [getattr(effects[lane], name) for lane in lanes]
    changed = _rows(SETTLE, parameters)
    settled = {log for row in changed for log in row["settled"] or ()}
    return settled, {row["session_id"] for row in changed if row["troubled"]}


def recover(
    *, lease: timedelta, verify_after: timedelta, reason: str, dead_owners: Sequence[uuid.UUID] = (), now: datetime | None = None
) -> list[Lost]:
    """What lanes with an expired lease, or of an owner known to be dead, had in flight becomes UNCONFIRMED; the lanes are freed."""
    parameters = {"lease": lease, "verify_after": verify_after, "reason": reason, "dead_owners": list(dead_owners), "now": now}
    return [Lost(**row) for row in _rows(RECOVER, parameters)]
