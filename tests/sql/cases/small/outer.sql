-- a b
select a.id, b.v, c.w from a join b on a.id = b.id left join c on c.k = b.k

-- a b
select a.id, b.v, c.w from a left join c on c.id = a.id join b on a.k = b.k

-- none
select a.id, b.v, c.w from a left join c on c.id = a.id join b on c.k = b.k

-- a b
select a.id, b.v, c.w from a left join c on c.id = a.id join b on a.k = b.k and c.k = b.k

-- a b
select a.id, c.w from a left join c on c.id = a.id, b where a.k = b.k and c.w is null

-- a b +c
select a.id, b.id from a join b on a.k = b.k left semi join c on c.id = a.id

-- a b -c
select a.id, b.id from a join b on a.k = b.k left anti join c on c.id = a.id where b.v > 1

-- a b
select * from a join b on a.k = b.k left join c on c.id = a.id

-- a b +c
select * from a join b on a.k = b.k left semi join c on c.id = a.id

-- a b
select a.*, c.w from a join b on a.k = b.k left join c on c.id = a.id and c.w = 'p' where a.id < 4

-- a b
select a.id, b.id, c.id from a join b on a.k = b.k right join c on c.id = a.id

-- a b
select a.id, b.id, c.id from a join b on a.k = b.k right join c on c.id = a.id where b.v > 1

-- a b
select a.id, b.id, c.id from a join b on a.k = b.k full join c on c.id = a.id where a.id = 1

-- a b
select a.id, b.id, c.id from a join b on upper(a.s) = b.s and a.k = b.k full join c on c.id = a.id

-- none
select a.id, b.id, c.id from a right join b on a.k = b.k join c on c.id = a.id

-- none
select a.id, b.id, c.id from a, b full join c on c.id = a.id where a.k = b.k

-- none
select a.id from a left join b on a.id = b.id

-- a b
select a.id, z.n from a join b on a.id = b.id left join (select k, count(*) n from c group by k) z on z.k = b.k

-- a b e
select a.id, b.id, c.w, e.s from a join b on a.k = b.k left join c on c.id = a.id join a e on e.id = b.id
