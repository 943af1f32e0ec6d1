-- The same, back into a live table with the primary key `item`, for whoever looks it up.
{{ config(materialized='external', plugin='forebay', table='fluss.revenue') }}
select * from {{ ref('revenue') }}
