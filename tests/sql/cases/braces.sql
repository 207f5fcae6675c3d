-- values
select x.id, y.v, {n} as n from {a} x join {b} y on x.id = y.id where x.k > {n} or y.s = {quoted}
select {a}.id, {b}.v from {a} join {b} on {a}.id = {b}.id
select {a.id}, {a[k]}, {a[0]} from {a} where {k} > {n}
select x.id, y.id from {a} x join {same} y on x.k = y.k
select id, '{{n}}' as shown, {quoted} as quoted, {n:05} as five, {quoted!r} as r from {b}
select x.id from {among[0]} x join {among[1]} y using (id) where {yes}
select * from {a} where id in {numbers} and x < {float} and n = {decimal}
with t as (select * from {a} where {a.k} > :low) select t.id, b.v from t join {b} b on t.id = b.id
