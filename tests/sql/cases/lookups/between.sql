select e.id, m.v from events e join metrics m on m.host = e.host and m.at between e.since and e.until

select e.id, m.v from events e, metrics m where e.host = m.host and m.at > e.since and e.until > m.at and m.v <> e.id

select e.id, m.v from events e left join metrics m on m.host = e.host and m.at >= e.since and m.at < e.until and m.v > 1

select m.v from metrics m where m.host in ('a', 'b') and m.at between timestamp'2024-01-01 00:00:00' and timestamp'2024-01-02 12:00:00'

select e.id, m.v from events e join metrics m on m.host = e.host and m.at > e.until - interval 5 minutes and m.at <= e.until

select e.id, t.v from events e join ticks t on t.n between e.low and e.high

select e.id, count(*) from events e join ticks t on t.n >= e.low and t.n < 9 and t.v <> e.id group by e.id

select a.v, b.v from events e join metrics a on a.host = e.host and a.at between e.since and e.until join metrics b on b.host = a.host and b.at <= a.at and b.at between e.since and e.until

select e.id, t.v from events e join metrics m on m.host = e.host and m.at >= e.since and m.at <= e.until join ticks t on t.n between m.n and e.high
